package codec

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// The files of testdata/vectors; their README describes the format.

type goodVector struct {
	Name    string
	Hex     string
	Lenient bool
	Fields  map[string]any
}

type badVector struct {
	Name, Hex, Code, Clause string
	CodeName                string `json:"code_name"`
}

type streamVector struct {
	badVector
	FrameBytesMax string `json:"frame_bytes_max"`
	Frames        []string
	Rest          string
}

func readVectors[T any](t testing.TB, name string) []T {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", "vectors", name))
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	var v []T
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if len(v) == 0 {
		t.Fatalf("%s is empty", name)
	}
	return v
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// allTypes are the frame types of this version.
func allTypes() (types []Type) {
	for i := range 256 {
		if Type(i).known() {
			types = append(types, Type(i))
		}
	}
	return types
}

func TestGoodVectors(t *testing.T) {
	for _, typ := range allTypes() {
		for _, v := range readVectors[goodVector](t, strings.ToLower(typ.String())+".good.json") {
			t.Run(typ.String()+"/"+v.Name, func(t *testing.T) {
				b := unhex(t, v.Hex)
				f, n, err := Parse(b, FrameBytesMax)
				if err != nil || n != len(b) || f.Type != typ {
					t.Fatalf("parse: %v, %d of %d bytes, %v", f.Type, n, len(b), err)
				}
				x, err := decodeAny(f)
				if err != nil {
					t.Fatal(err)
				}
				encoded := appendAny(nil, x)
				if v.Lenient == bytes.Equal(encoded, b) {
					t.Errorf("encoded again: % x (lenient: %v)", encoded, v.Lenient)
				}
				if got := fieldsOf(t, x); !reflect.DeepEqual(got, v.Fields) {
					t.Errorf("fields:\n got %v\nwant %v", got, v.Fields)
				}
			})
		}
	}
}

func TestBadVectors(t *testing.T) {
	for _, typ := range allTypes() {
		for _, v := range readVectors[badVector](t, strings.ToLower(typ.String())+".bad.json") {
			t.Run(typ.String()+"/"+v.Name, func(t *testing.T) {
				b := unhex(t, v.Hex)
				f, n, err := Parse(b, FrameBytesMax)
				if err != nil || n != len(b) || f.Type != typ {
					t.Fatalf("parse: %v, %d of %d bytes, %v", f.Type, n, len(b), err)
				}
				_, err = decodeAny(f)
				checkRefusal(t, v, err)
			})
		}
	}
}

func checkRefusal(t *testing.T, v badVector, err error) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want code %s", err, v.CodeName)
	}
	if strconv.Itoa(int(e.Code)) != v.Code || e.Code.String() != v.CodeName || e.Clause != v.Clause {
		t.Errorf("refused with %d %v [%s], want %s %s [%s]", e.Code, e.Code, e.Clause, v.Code, v.CodeName, v.Clause)
	}
}

func TestStreamVectors(t *testing.T) {
	vectors := readVectors[streamVector](t, "stream.good.json")
	vectors = append(vectors, readVectors[streamVector](t, "stream.bad.json")...)
	for _, v := range vectors {
		t.Run(v.Name, func(t *testing.T) {
			frameBytesMax, err := strconv.Atoi(v.FrameBytesMax)
			if err != nil {
				t.Fatal(err)
			}
			frames, rest, err := split(unhex(t, v.Hex), frameBytesMax)
			var got []string
			for _, f := range frames {
				got = append(got, hex.EncodeToString(f))
			}
			if strings.Join(got, " ") != strings.Join(v.Frames, " ") {
				t.Errorf("frames %v, want %v", got, v.Frames)
			}
			if v.Code != "" {
				checkRefusal(t, v.badVector, err)
			} else if err != nil || hex.EncodeToString(rest) != v.Rest {
				t.Errorf("rest % x, %v; want %s", rest, err, v.Rest)
			}
		})
	}
}

// split cuts a stream into whole frames and what is left behind them.
func split(b []byte, frameBytesMax int) (frames [][]byte, rest []byte, err error) {
	for {
		_, n, err := Parse(b, frameBytesMax)
		if n == 0 {
			return frames, b, err
		}
		frames = append(frames, b[:n])
		b = b[n:]
	}
}

// fieldsOf renders a decoded frame as the vectors do: everything is a string, zero values are left out.
func fieldsOf(t *testing.T, x any) map[string]any {
	fields := map[string]any{}
	if e, ok := x.(echo); ok {
		if e.data != "" {
			fields["data"] = hex.EncodeToString([]byte(e.data))
		}
		return fields
	}
	structFields(reflect.ValueOf(x).Elem(), fields)
	switch x := x.(type) {
	case *Ack:
		var ranges []string
		for r := range x.Ranges {
			ranges = append(ranges, fmt.Sprintf("%d+%d", r.From, r.Count))
		}
		if ranges != nil {
			fields["ranges"] = strings.Join(ranges, " ")
		}
	case *Publish:
		listFields(t, fields, "items", x.Next)
	case *Published:
		listFields(t, fields, "results", x.Next)
	case *Heads:
		listFields(t, fields, "entries", x.Next)
	}
	return fields
}

func listFields[T any](t *testing.T, fields map[string]any, name string, next func(*T) (bool, error)) {
	var list []any
	for {
		var it T
		ok, err := next(&it)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		m := map[string]any{}
		structFields(reflect.ValueOf(it), m)
		list = append(list, m)
	}
	if list != nil {
		fields[name] = list
	}
}

func structFields(v reflect.Value, fields map[string]any) {
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		f := v.Field(i)
		switch {
		case unicode.IsLower(rune(name[0])):
		case f.Kind() == reflect.Slice && f.Len() > 0 && (name == "Payload" || name == "Token"):
			fields[snake(name)] = hex.EncodeToString(f.Bytes())
		case f.Kind() == reflect.Slice && f.Len() > 0:
			fields[snake(name)] = string(f.Bytes())
		case f.CanUint() && f.Uint() != 0:
			fields[snake(name)] = strconv.FormatUint(f.Uint(), 10)
		case f.Kind() == reflect.Bool && f.Bool():
			fields[snake(name)] = "true"
		}
	}
}

// snake turns a Go name into the name of the documents: RequestIDBase, request_id_base.
func snake(name string) string {
	var out []rune
	runes := []rune(name)
	for i, c := range runes {
		startsWord := i > 0 && unicode.IsUpper(c) && (unicode.IsLower(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1]))
		if startsWord {
			out = append(out, '_')
		}
		out = append(out, unicode.ToLower(c))
	}
	return string(out)
}
