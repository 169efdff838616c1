package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"holdfast/client"
	"holdfast/codec"
)

// A program that receives: the handler's nil confirms the message, an error asks for it again.
func ExampleDial() {
	addr, stop := gateway("hello", "world")
	defer stop()
	got := make(chan string)
	c, err := client.Dial(context.Background(), client.Options{
		Addrs:  []string{addr}, // your gateway, port 7700
		User:   "alice",
		Device: "phone-4711", // made once, kept for ever
		Handler: func(ctx context.Context, m *client.Message) error {
			got <- string(m.Payload) // store it, show it
			return nil
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	fmt.Println(<-got)
	fmt.Println(<-got)
	// Output:
	// hello
	// world
}

// Confirming by hand, from wherever the work is finished.
func ExampleMessage_Ack() {
	addr, stop := gateway("resize photo 1", "resize photo 2", "nonsense")
	defer stop()
	jobs := make(chan *client.Message, 64)
	c, err := client.Dial(context.Background(), client.Options{
		Addrs:   []string{addr},
		User:    "worker",
		AckMode: client.AckManual,
		Handler: func(_ context.Context, m *client.Message) error { jobs <- m; return nil },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	for range 3 {
		m := <-jobs
		m.Extend(time.Minute) // it may take longer than the ACK timeout
		var photo int
		if _, err := fmt.Sscanf(string(m.Payload), "resize photo %d", &photo); err != nil {
			m.Refuse(err.Error()) // never again: a dead letter with this reason
			fmt.Println("refused", string(m.Payload))
			continue
		}
		fmt.Println("photo", photo)
		m.Ack()
	}
	// Output:
	// photo 1
	// photo 2
	// refused nonsense
}

// Publishing: every message has its own result, and the ids make a repeat harmless.
func ExampleClient_Publish() {
	addr, stop := gateway()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, err := client.Dial(ctx, client.Options{Addrs: []string{addr}, User: "shop", Publisher: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	results, err := c.Publish(ctx,
		client.Outgoing{ID: "order-1", User: "alice", Type: "order", Payload: []byte("shipped")},
		client.Outgoing{ID: "order-2", User: "", Type: "order", Payload: []byte("shipped")},
	)
	if err != nil {
		fmt.Println(err) // not all were answered; publish again with the same ids
	}
	for _, r := range results {
		var refused *client.ResultError
		switch {
		case r.Err == nil:
			fmt.Println(r.MessageID, r.Code)
		case errors.As(r.Err, &refused):
			fmt.Println(r.MessageID, r.Err, "again later:", refused.Retry())
		}
	}
	// Output:
	// order-1 accepted
	// order-2 publish refused: bad_user again later: false
}

// Remembering message ids over a restart of the program.
func ExampleOpenDedupFile() {
	dir, err := os.MkdirTemp("", "holdfast")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for range 2 { // two runs of the program
		addr, stop := gateway("only once")
		seen, err := client.OpenDedupFile(filepath.Join(dir, "seen"), 4096)
		if err != nil {
			fmt.Println(err)
			return
		}
		c, err := client.Dial(context.Background(), client.Options{
			Addrs:      []string{addr},
			User:       "alice",
			DedupStore: seen,
			Handler: func(_ context.Context, m *client.Message) error {
				fmt.Println(string(m.Payload))
				return nil
			},
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		for c.Stats().AckFrames == 0 { // the server has its answer, both times
			time.Sleep(time.Millisecond)
		}
		c.Close()
		seen.Close()
		stop()
	}
	// Output: only once
}

// gateway is a server for one connection: it pushes the payloads and accepts what is published.
func gateway(payloads ...string) (addr string, stop func()) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		nc, err := ln.Accept()
		if err != nil {
			return
		}
		defer nc.Close()
		out := codec.AppendWelcome(nil, &codec.Welcome{SessionID: 1, KeepaliveS: 30, AckTimeoutMs: 10000, WindowMsgs: 64,
			WindowBytes: 256 << 10, PublishWindow: 4, FrameBytesMax: codec.FrameBytesDefault})
		for i, payload := range payloads {
			out = codec.AppendPush(out, &codec.Push{Number: uint64(i + 1), Attempt: 1, MessageID: fmt.Appendf(nil, "m%d", i+1), Payload: []byte(payload)})
		}
		var in []byte
		for buf := make([]byte, 4096); ; {
			n, err := nc.Read(buf)
			if err != nil {
				return
			}
			in = append(in, buf[:n]...)
			for {
				f, n, err := codec.Parse(in, codec.FrameBytesDefault)
				if err != nil || n == 0 {
					break
				}
				in = in[n:]
				switch f.Type {
				case codec.TypeClose:
					return
				case codec.TypePublish:
					out = answer(out, f)
				}
			}
			if _, err := nc.Write(out); err != nil {
				return
			}
			out = out[:0]
		}
	}()
	return ln.Addr().String(), func() {
		ln.Close()
		<-done
	}
}

// answer accepts every item that names a user.
func answer(out []byte, f codec.Frame) []byte {
	var x codec.Publish
	if err := codec.DecodePublish(f, &x); err != nil {
		return out
	}
	var w codec.PublishedWriter
	w.Reset(x.Number)
	var it codec.PublishItem
	for {
		ok, err := x.Next(&it)
		if err != nil || !ok {
			return w.AppendTo(out)
		}
		r := codec.ItemResult{MessageID: it.MessageID}
		if len(it.User) == 0 {
			r.Result = codec.ResultBadUser
		}
		w.Add(&r)
	}
}
