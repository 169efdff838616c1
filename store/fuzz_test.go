package store

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"holdfast/delivery"
)

// Decoders see only what has a valid checksum, but they must not depend on it.

func FuzzParseRecords(f *testing.F) {
	f.Add(appendPut(nil, &put{kind: framePut, seq: 1, message: []byte("m"), command: []byte("c")}, "alice", "phone"))
	f.Add(appendEnded(nil, &endedEntry{mid: 1, seq: 2}, "alice", "phone"))
	f.Add(appendDevice(nil, "alice", "phone", &queue{seenMs: 7, heir: true}))
	f.Add(appendList(nil, frameEnds, appendEnd(nil, end{seq: 3, status: delivery.StatusAcked}), endBytes))
	f.Fuzz(func(_ *testing.T, b []byte) {
		var p put
		parsePut(b, &p)
		var e endedEntry
		_, _, _ = parseEnded(b, &e)
		_, _, _, _, _ = parseDevice(b)
		if len(b) >= frameHeadBytes {
			eachItem(b, endBytes, func(item []byte) { parseEnd(item) })
			eachItem(b, noteBytes, func([]byte) {})
		}
	})
}

func FuzzPutRoundTrip(f *testing.F) {
	f.Add("alice", "phone", []byte("m"), []byte("c"), uint64(5), uint16(2), byte(1))
	f.Fuzz(func(t *testing.T, user, device string, message, command []byte, seq uint64, attempts uint16, class byte) {
		if len(user) > 255 || len(device) > 255 || len(message) > 255 {
			return
		}
		in := put{kind: frameMove, class: class % 3, flags: putSent, attempts: attempts, seq: seq, acceptedMs: 5, expireMs: 6, message: message, command: command}
		frame := appendPut([]byte("12345678"), &in, user, device)[8:]
		var out put
		if !parsePut(frame, &out) || string(out.user) != user || string(out.device) != device || !bytes.Equal(out.message, message) ||
			!bytes.Equal(out.command, command) || out.seq != seq || out.attempts != attempts || out.class != class%3 || len(frame)%frameAlign != 0 {
			t.Fatalf("got %+v of %+v", out, in)
		}
	})
}

// FuzzSegment gives recovery any file as the last segment: it must come up, with or without messages.
func FuzzSegment(f *testing.F) {
	f.Add([]byte{}, 0)
	f.Add(bytes.Repeat([]byte{0}, 100), 16)
	f.Fuzz(func(t *testing.T, b []byte, at int) {
		dir := t.TempDir()
		l := open(t, Config{Dir: dir})
		store1(t, l, must(t, l, "alice", "")[0], "m", "x")
		shut(t, l)
		path := filepath.Join(dir, filepath.Base(lastSegment(t, dir)))
		old, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		at = max(0, min(at, len(old)))
		if err := os.WriteFile(path, append(old[:at:at], b...), 0o640); err != nil {
			t.Fatal(err)
		}
		l = open(t, Config{Dir: dir})
		store1(t, l, must(t, l, "alice", "")[0], "n", "y")
		shut(t, l)
	})
}
