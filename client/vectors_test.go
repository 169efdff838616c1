package client

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/codec"
)

// vector is one line of codec/testdata/vectors; its README says what the keys mean.
type vector struct {
	Name, Hex, Code, Rest, From, Text string
	Fields                            map[string]any
	Frames                            []string
	FrameBytesMax                     string `json:"frame_bytes_max"`
}

func (v *vector) bytes(t *testing.T) []byte { return unhex(t, v.Hex) }

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (v *vector) field(name string) string {
	s, _ := v.Fields[name].(string)
	return s
}

func (v *vector) code(t *testing.T) codec.Code {
	t.Helper()
	n, err := strconv.ParseUint(v.Code, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	return codec.Code(n)
}

func vectors(t *testing.T, file string) []vector {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "codec", "testdata", "vectors", file))
	if err != nil {
		t.Fatal(err)
	}
	var vs []vector
	if err := json.Unmarshal(data, &vs); err != nil {
		t.Fatal(file, err)
	}
	if len(vs) == 0 {
		t.Fatal(file, "is empty")
	}
	return vs
}

// wantClose reads up to the client's CLOSE.
func wantClose(t *testing.T, p *peer) codec.Close {
	t.Helper()
	for {
		f, ok, err := p.next(patience)
		if !ok {
			t.Fatal("no CLOSE: ", err)
		}
		if f.Type != codec.TypeClose {
			continue
		}
		var x codec.Close
		if err := codec.DecodeClose(f, &x); err != nil {
			t.Fatal(err)
		}
		return x
	}
}

func TestBadVectorsOfServerFramesAreAnsweredWithTheirCode(t *testing.T) {
	for _, frame := range []string{"push", "close", "goaway", "ping", "pong", "published", "sent", "synced", "heads", "receipt"} {
		for _, v := range vectors(t, frame+".bad.json") {
			t.Run(frame+"/"+v.Name, func(t *testing.T) {
				_, p, _ := pair(t, Options{Handler: newRecorder().handle, NoReconnect: true})
				p.write(v.bytes(t))
				if x := wantClose(t, p); x.Code != v.code(t) {
					t.Errorf("close %s, want %s", x.Code, v.code(t))
				}
			})
		}
	}
	for _, v := range vectors(t, "welcome.bad.json") {
		t.Run("welcome/"+v.Name, func(t *testing.T) {
			s := newServer(t)
			done := dialOnce(s)
			p := s.accept()
			p.connect()
			p.write(v.bytes(t))
			if x := wantClose(t, p); x.Code != v.code(t) {
				t.Errorf("close %s, want %s", x.Code, v.code(t))
			}
			var ce *CloseError
			if err := receive(t, done); !errors.As(err, &ce) || !ce.Local || ce.Code != v.code(t) {
				t.Errorf("dial: %v", err)
			}
		})
	}
}

// dialOnce dials in the background and gives the error; a client that gets in is closed.
func dialOnce(s *fakeServer) chan error {
	done := make(chan error, 1)
	go func() {
		c, err := Dial(s.t.Context(), Options{Addrs: []string{s.addr()}, User: "alice", Handler: newRecorder().handle})
		done <- err
		if err == nil {
			c.Close()
		}
	}()
	return done
}

func TestFramesThatOnlyClientsSendAreUnexpected(t *testing.T) {
	for _, frame := range []string{"connect", "ack", "nack", "extend", "send", "sync", "read", "publish", "welcome"} {
		for _, v := range vectors(t, frame+".good.json") {
			_, p, _ := pair(t, Options{Handler: newRecorder().handle, NoReconnect: true}, func(w *codec.Welcome) { w.FrameBytesMax = 1 << 20 })
			p.write(v.bytes(t))
			if x := wantClose(t, p); x.Code != codec.CodeUnexpectedFrame {
				t.Errorf("%s/%s: close %s", frame, v.Name, x.Code)
			}
		}
	}
}

func TestGoodVectorsOfQuietFramesKeepTheConnection(t *testing.T) {
	_, p, c := pair(t, Options{Handler: newRecorder().handle, NoReconnect: true}, func(w *codec.Welcome) { w.FrameBytesMax = 1 << 20 })
	for _, frame := range []string{"pong", "sent", "synced", "heads", "receipt"} {
		for _, v := range vectors(t, frame+".good.json") {
			p.write(v.bytes(t))
		}
	}
	for _, v := range vectors(t, "ping.good.json") {
		p.write(v.bytes(t))
		data, err := codec.DecodePing(p.expect(codec.TypePong))
		if err != nil || hex.EncodeToString(data) != v.field("data") {
			t.Errorf("ping/%s: %x %v", v.Name, data, err)
		}
	}
	if c.Err() != nil {
		t.Error(c.Err())
	}
}

func TestGoodPushVectorsBecomeMessages(t *testing.T) {
	for _, v := range vectors(t, "push.good.json") {
		t.Run(v.Name, func(t *testing.T) {
			r := newRecorder()
			_, p, _ := pair(t, Options{Handler: r.handle}, func(w *codec.Welcome) { w.FrameBytesMax = 1 << 20 })
			p.write(v.bytes(t))
			m := r.next(t)
			expire := ""
			if !m.ExpireAt.IsZero() {
				expire = fmt.Sprint(m.ExpireAt.UnixMilli())
			}
			for name, got := range map[string]string{
				"message_id": m.ID, "type": m.Type, "conversation": m.Conversation, "payload": hex.EncodeToString(m.Payload),
				"attempt": fmt.Sprint(m.Attempt), "server_time_ms": fmt.Sprint(m.ServerTime.UnixMilli()), "sequence": fmt.Sprint(m.Sequence),
				"priority": fmt.Sprint(uint8(m.Priority)), "no_ack": fmt.Sprint(m.NoAck), "redelivered": fmt.Sprint(m.Redelivered),
				"from_backlog": fmt.Sprint(m.FromBacklog), "expire_at_ms": expire, "number": fmt.Sprint(m.number),
			} {
				want := v.field(name)
				if want == "" && (got == "0" || got == "false") {
					got = ""
				}
				if got != want {
					t.Errorf("%s is %q, want %q", name, got, want)
				}
			}
			if !m.NoAck {
				if got := ackWords(p.ack()); got != "processed "+v.field("number") {
					t.Error(got)
				}
			}
		})
	}
}

func TestGoodCloseVectorsEndWithTheirCode(t *testing.T) {
	for _, v := range vectors(t, "close.good.json") {
		_, p, c := pair(t, Options{Handler: newRecorder().handle, NoReconnect: true})
		p.write(v.bytes(t))
		receive(t, c.Done())
		var ce *CloseError
		if err := c.Err(); !errors.As(err, &ce) || fmt.Sprint(uint16(ce.Code)) != v.field("code") || ce.Reason != v.field("reason") {
			t.Errorf("%s: %v", v.Name, err)
		}
	}
}

func TestGoodGoAwayVectorsAreUnderstood(t *testing.T) {
	for _, v := range vectors(t, "goaway.good.json") {
		events, ch := watch()
		_, p, _ := pair(t, Options{Handler: newRecorder().handle, NoReconnect: true, Events: events})
		p.write(v.bytes(t))
		ms, _ := strconv.Atoi(v.field("reconnect_after_ms"))
		want := fmt.Sprint("goaway ", time.Duration(ms)*time.Millisecond, splitServers([]byte(v.field("servers"))))
		wantEvents(t, ch, "connected n1", want)
	}
}

func TestGoodWelcomeVectorsLogIn(t *testing.T) {
	for _, v := range vectors(t, "welcome.good.json") {
		s := newServer(t)
		client := start(t, s, Options{Handler: newRecorder().handle})
		p := s.accept()
		p.connect()
		p.write(v.bytes(t))
		i := client().Session()
		for name, got := range map[string]any{"session_id": i.SessionID, "keepalive_s": int(i.Keepalive.Seconds()), "ack_timeout_ms": i.AckTimeout.Milliseconds(),
			"window_msgs": i.WindowMsgs, "window_bytes": i.WindowBytes, "publish_window": i.PublishWindow, "frame_bytes_max": i.FrameBytesMax,
			"node": i.Node, "user": i.User, "device": i.Device} {
			if want := v.field(name); want != "" && fmt.Sprint(got) != want {
				t.Errorf("%s: %s is %v, want %s", v.Name, name, got, want)
			}
		}
	}
}

func TestGoodPublishedVectorsAnswerTheirPublish(t *testing.T) {
	for _, v := range vectors(t, "published.good.json") {
		n, _ := strconv.Atoi(v.field("count"))
		number, _ := strconv.ParseUint(v.field("number"), 10, 64)
		p := publisher{inflight: map[uint64]sentFrame{}}
		call := newCall(make([]Outgoing, n))
		call.done = make(chan struct{})
		p.inflight[number] = sentFrame{spans: []span{{call, 0, n}}, items: n}
		f, _, err := codec.Parse(v.bytes(t), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		var x codec.Published
		if err := codec.DecodePublished(f, &x); err != nil {
			t.Fatal(err)
		}
		if err := p.answer(&x); err != nil || call.left != 0 {
			t.Errorf("%s: %v, %d left", v.Name, err, call.left)
		}
	}
}

func TestStreamVectorsAreCutIntoTheirFrames(t *testing.T) {
	for _, file := range []string{"stream.good.json", "stream.bad.json"} {
		for _, v := range vectors(t, file) {
			for _, step := range []int{1, 3, 1 << 20} {
				frameMax, _ := strconv.Atoi(v.FrameBytesMax)
				got, rest, err := cutStream(t, v.bytes(t), frameMax, step)
				if fmt.Sprint(got) != fmt.Sprint(v.Frames) {
					t.Errorf("%s, %d at a time: frames %v, want %v", v.Name, step, got, v.Frames)
				}
				var ce *CloseError
				switch {
				case v.Code == "" && (err != nil || rest != v.Rest):
					t.Errorf("%s, %d at a time: %v, rest %s", v.Name, step, err, rest)
				case v.Code != "" && (!errors.As(err, &ce) || ce.Code != v.code(t)):
					t.Errorf("%s, %d at a time: %v, want %s", v.Name, step, err, v.code(t))
				}
			}
		}
	}
}

// cutStream runs bytes through a frameReader, step at a time.
func cutStream(t *testing.T, stream []byte, frameMax, step int) (frames []string, rest string, err error) {
	t.Helper()
	here, there := net.Pipe()
	defer here.Close()
	go func() {
		defer there.Close()
		for len(stream) > 0 {
			n := min(step, len(stream))
			if _, err := there.Write(stream[:n]); err != nil {
				return
			}
			stream = stream[n:]
		}
	}()
	var in atomic.Uint64
	r := frameReader{nc: here, frameBytesMax: frameMax, bytes: &in}
	for {
		before := r.start
		_, ok, err := r.frame()
		switch {
		case err != nil:
			return frames, "", err
		case ok:
			frames = append(frames, hex.EncodeToString(r.buf[before:r.start]))
		default:
			if r.fill() != nil {
				return frames, hex.EncodeToString(r.buf[r.start:r.end]), nil
			}
		}
	}
}

// The worked example of docs/protocol.md, byte for byte, but for its minute of silence.
func TestSessionVectorIsWhatThisClientSays(t *testing.T) {
	s := newServer(t)
	r := newRecorder()
	elsewhere := newServer(t)
	client := start(t, s, Options{Handler: r.handle, AckMode: AckManual, User: "alice", Device: "phone", Keepalive: time.Minute,
		DialConn: func(ctx context.Context, addr string) (net.Conn, error) {
			if addr != s.addr() {
				addr = elsewhere.addr() // b.example
			}
			return dialTCP(ctx, addr)
		}})
	p := s.accept()
	levels := []codec.AckLevel{codec.LevelReceived, codec.LevelProcessed, codec.LevelProcessed}
	var held []*Message
	for _, v := range vectors(t, "session.json") {
		frame := v.bytes(t)
		switch typ := codec.Type(frame[1]); {
		case typ == codec.TypePing || typ == codec.TypePong:
		case v.From == "server":
			p.write(frame)
			if typ == codec.TypePush && frame[2]&codec.PushRedelivered == 0 {
				held = append(held, r.next(t))
			}
			if typ == codec.TypePush && frame[2]&codec.PushRedelivered != 0 {
				c := client()
				eventually(t, "the copy", func() bool { return c.Stats().Duplicates == 1 })
			}
		default:
			if typ == codec.TypeAck {
				for _, m := range held {
					m.AckLevel(levels[0])
				}
				held, levels = nil, levels[1:]
			}
			got := p.expect(typ)
			if want := frame[2:]; !bytes.Equal(append([]byte{got.Flags}, got.Body...), want) {
				t.Errorf("%s: flags and body % x, want % x", v.Text, append([]byte{got.Flags}, got.Body...), want)
			}
		}
	}
	p.nc.Close()
	elsewhere.login()
}
