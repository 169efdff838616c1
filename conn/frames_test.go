package conn

import (
	"bytes"
	"encoding/binary"
	"net"
	"runtime"
	"testing"
	"time"

	"holdfast/codec"
)

// header is the start of a SEND frame that announces length bytes.
func header(length uint64) []byte {
	return append(binary.AppendUvarint(nil, length), byte(codec.TypeSend), 0)
}

// I3: over the limit is refused at the header; what is announced is not allocated.
func TestI3HugeAnnouncedLengths(t *testing.T) {
	const conns = 400
	s := start(t, Config{}, newRecorder())
	for _, length := range []uint64{codec.FrameBytesDefault + 1, 1 << 20, 1<<28 - 1, 1<<31 - 1, 1<<32 - 1} {
		p := dial(t, s)
		p.send(header(length))
		f, err := p.next()
		var c codec.Close
		if err != nil || codec.DecodeClose(f, &c) != nil || c.Code != codec.CodeFrameTooLarge && c.Code != codec.CodeMalformed {
			t.Fatalf("length %d: %v %v", length, c, err)
		}
		p = dial(t, s).login("alice")
		p.send(header(codec.FrameBytesDefault + 1))
		p.expectClose(codec.CodeFrameTooLarge)
	}
	eventually(t, "the first ones to go", func() bool { return s.Stats().Conns == 0 })

	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range conns {
		c, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write(append(header(60000), make([]byte, 20)...)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all bytes to be read", func() bool { return s.Stats().BytesIn >= conns*24 })
	runtime.GC()
	runtime.ReadMemStats(&after)
	if per := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / conns; per > 8<<10 {
		t.Fatalf("%d bytes held per connection that announced 60000 and sent 24", per)
	}
}

// I3: a frame of exactly the maximum works, however it is cut.
func TestI3LargestFrameWorks(t *testing.T) {
	r := newRecorder()
	s := start(t, Config{FrameBytesMax: 4096}, r)
	p := dial(t, s).login("alice")
	largest := codec.AppendSend(nil, &codec.Send{ClientMessageID: []byte("m"), Conversation: []byte("c"), Payload: make([]byte, 4000)})
	pad := 0
	for {
		next := codec.AppendSend(nil, &codec.Send{ClientMessageID: []byte("m"), Conversation: []byte("c"), Payload: make([]byte, 4000+pad+1)})
		if _, _, err := codec.Parse(next, 4096); err != nil {
			break
		}
		largest, pad = next, pad+1
	}
	p.send(largest)
	for _, b := range largest[:200] {
		p.send([]byte{b})
	}
	p.send(largest[200:])
	r.wait(t, "both frames", func() bool { return len(r.frames) == 2 })
	if seen := r.seen(); seen[0] != seen[1] {
		t.Fatal("the cut frame came out different")
	}
	if r.logins != 1 || s.Stats().FramesIn != 3 {
		t.Fatalf("%d logins, %d frames counted", r.logins, s.Stats().FramesIn)
	}
}

// PING is answered with its own bytes; a handler that objects ends the connection; so do a second login and garbage.
func TestFramesOfAnOpenSession(t *testing.T) {
	r := newRecorder()
	r.frame = func(_ *Session, f codec.Frame) (codec.Code, string) {
		if f.Type == codec.TypeExtend {
			return codec.CodeForbidden, "not you"
		}
		return codec.CodeNone, ""
	}
	s := start(t, Config{}, r)
	p := dial(t, s).login("alice")
	p.send(codec.AppendPing(nil, []byte("12345678")))
	if f := p.expect(codec.TypePong); !bytes.Equal(f.Body, []byte("12345678")) {
		t.Fatalf("pong %x", f.Body)
	}
	p.send(append(codec.AppendExtend(nil, &codec.Extend{Number: 1}), codec.AppendAckOne(nil, 1, 0)...))
	if c := p.expectClose(codec.CodeForbidden); string(c.Reason) != "not you" {
		t.Fatalf("reason %q", c.Reason)
	}
	if n := len(r.seen()); n != 1 {
		t.Fatalf("%d frames handled, want none behind the refused one", n)
	}
	p = dial(t, s).login("alice")
	p.send(connect("alice", "phone"))
	p.expectClose(codec.CodeUnexpectedFrame)
	p = dial(t, s).login("alice")
	p.send([]byte{2, 0xEE, 0})
	p.expectClose(codec.CodeMalformed)
}

// A client that says CLOSE gets its replies and the end of the stream, no CLOSE; nothing behind its CLOSE counts.
func TestClientCloseEndsTheSession(t *testing.T) {
	r := newRecorder()
	s := start(t, Config{}, r)
	p := dial(t, s).login("alice")
	data := codec.AppendPing(nil, nil)
	data = codec.AppendClose(data, &codec.Close{Code: codec.CodeNormal})
	p.send(codec.AppendAckOne(data, 1, 0))
	p.expect(codec.TypePong)
	if f, err := p.next(); err == nil {
		t.Fatalf("got %v behind the client's CLOSE", f.Type)
	}
	r.wait(t, "Closed", func() bool { return len(r.closings) == 1 })
	if len(r.seen()) != 0 {
		t.Fatal("a frame behind the client's CLOSE was handled")
	}
	p.Close()
	eventually(t, "the socket to be freed", func() bool { return s.Stats().Conns == 0 })
	if s.Stats().PeerCloses != 1 {
		t.Fatal("not counted")
	}
}

// E3: sends just inside the allowed silence are never cut; silence is, between 1.5 keepalives and 5 s more. Any complete frame is
// life, bytes are not.
func TestE3KeepaliveBorders(t *testing.T) {
	t.Parallel()
	s := start(t, Config{}, newRecorder())
	login := func(t *testing.T) *peer {
		p := dial(t, s)
		p.send(codec.AppendConnect(nil, &codec.Connect{Version: 1, User: []byte("a"), Device: []byte("d"), KeepaliveS: 1}))
		p.expect(codec.TypeWelcome)
		return p
	}
	cut := func(t *testing.T, p *peer, since time.Time) {
		p.expectClose(codec.CodeKeepaliveTimeout)
		if took := time.Since(since); took < 1490*time.Millisecond || took > 6500*time.Millisecond {
			t.Fatalf("cut after %s of silence", took)
		}
	}
	t.Run("frames are life", func(t *testing.T) {
		t.Parallel()
		pinging, acking := login(t), login(t)
		var last time.Time
		for _, wait := range []time.Duration{950, 1000, 1400, 1400} {
			time.Sleep(wait * time.Millisecond)
			last = time.Now()
			pinging.send(codec.AppendPing(nil, nil))
			acking.send(codec.AppendAckOne(nil, 1, 0))
		}
		cut(t, pinging, last)
		cut(t, acking, last)
	})
	t.Run("bytes are no life", func(t *testing.T) {
		t.Parallel()
		p := login(t)
		last := time.Now()
		p.send(header(1000))
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				if _, err := p.Write([]byte{0}); err != nil || time.Since(last) > patience {
					return
				}
				time.Sleep(50 * time.Millisecond)
			}
		}()
		cut(t, p, last)
		p.Close()
		<-done
	})
}
