package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"holdfast/codec"
)

// Handler takes one message. ctx ends when the client is closed. What a returned error means is the AckMode's matter.
// Handlers of one client run one at a time and in order, unless Options.Concurrency says otherwise.
type Handler func(ctx context.Context, m *Message) error

// AckMode says who confirms a message, and when.
type AckMode uint8

const (
	// AckAfter confirms (processed) when the handler has returned nil. An error refuses the message: again after
	// Options.RetryDelay, or never when the error is a *Refusal. A handler may still settle the message itself.
	AckAfter AckMode = iota
	// AckBefore confirms (received) just before the handler is called: at most once. Its error changes nothing.
	AckBefore
	// AckManual leaves it to the program: Message.Ack and its kin, from any goroutine, also after the handler
	// returned. An error from the handler still refuses a message that is not settled yet.
	AckManual
)

// Options of a client. The zero value of each field is a documented default, except Addrs and (unless Publisher) Handler.
type Options struct {
	// Addrs are the servers, host:port. One is picked at random, then they are tried in turn. A server may name
	// others when it sends the client away; those are tried first, once.
	Addrs []string
	// User and Device name the queue. User may be empty where the token names it. Device: "default".
	User, Device string
	// Token gives the login token. It is asked at the first login and after the server called the token expired;
	// in between the last one is used again. To give the expired one again ends the client. nil: no token.
	Token func(context.Context) (string, error)
	// ClientName is free text for operators, such as "acme-ios/4.2".
	ClientName string
	// Publisher logs in to publish only: no queue, no messages. Handler may be nil.
	Publisher bool

	Handler Handler
	AckMode AckMode
	// Concurrency is how many handlers may run at once. 1 (default) keeps the order.
	Concurrency int
	// Inline calls the handler on the goroutine that reads the socket: cheapest, for handlers that return at once.
	// A handler that blocks stops keepalives and publish answers too.
	Inline bool
	// RetryDelay is what a handler's error asks for before the message comes again. Default 1 s.
	RetryDelay time.Duration
	// WindowMsgs and WindowBytes bound what the server may send unconfirmed. 0: the server's choice.
	WindowMsgs, WindowBytes int
	// Keepalive asks for an interval, in whole seconds (rounded up). The server decides. Default 30 s.
	Keepalive time.Duration

	// AckDelay is the longest an ACK waits for others to share a frame. Default 50 ms; < 0: none.
	AckDelay time.Duration
	// AckBatch is how many waiting ACKs are sent without more delay. Default 64, at most 256.
	AckBatch int
	// DedupSize is how many message ids are remembered to recognise a second copy. Default 4096; < 0: none, each
	// copy is handed over.
	DedupSize int
	// DedupStore keeps the ids over a restart of the program. nil: memory only. The client does not close it.
	DedupStore DedupStore

	// DialAttempts is how many logins Dial tries where trying again makes sense. Default 1; < 0: until its context ends.
	DialAttempts int
	// DialTimeout bounds one connection attempt with its login. Default 10 s.
	DialTimeout time.Duration
	// BackoffBase and BackoffMax shape the wait before the n-th try: a random time up to base x 2^n, at most max
	// (full jitter), on top of what the server asked for. Defaults 500 ms and 60 s.
	BackoffBase, BackoffMax time.Duration
	// NoReconnect ends the client at the first disconnect.
	NoReconnect bool
	// DialConn opens a connection; for TLS, proxies and tests. nil: TCP.
	DialConn func(ctx context.Context, addr string) (net.Conn, error)

	// PublishBatch is how many messages a PUBLISH frame carries at most. Default 256, at most 1024.
	PublishBatch int
	// PublishQueue is how many messages may wait for the publish window before Publish blocks. Default 8192.
	PublishQueue int

	Events Events
}

// Events are told what happens to the connection. Each may be nil. They are called one at a time on the client's own
// goroutine and must return soon; they may call Close, but not Shutdown.
type Events struct {
	// Connected: a login succeeded.
	Connected func(SessionInfo)
	// Disconnected: a connection or a try to get one ended. err is or wraps a *CloseError when a close code was said.
	// final: the client does not come back by itself; Err and Done tell the same.
	Disconnected func(err error, final bool)
	// Reconnecting: the next try, number attempt since the last good session, goes to addr after in.
	Reconnecting func(attempt int, in time.Duration, addr string)
	// GoAway: the server asked the client to reconnect after in, to one of servers (may be empty: any).
	GoAway func(in time.Duration, servers []string)
	// Warning: something that loses nothing, but that somebody may want to know: the DedupStore failed. It may come
	// from any goroutine.
	Warning func(error)
}

func (o *Options) setDefaults() {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	defD := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	if o.Device == "" && !o.Publisher {
		o.Device = "default"
	}
	def(&o.Concurrency, 1)
	def(&o.AckBatch, 64)
	def(&o.DedupSize, 4096)
	def(&o.DialAttempts, 1)
	def(&o.PublishBatch, 256)
	def(&o.PublishQueue, 8192)
	defD(&o.RetryDelay, time.Second)
	defD(&o.Keepalive, 30*time.Second)
	defD(&o.AckDelay, 50*time.Millisecond)
	defD(&o.DialTimeout, 10*time.Second)
	defD(&o.BackoffBase, 500*time.Millisecond)
	defD(&o.BackoffMax, 60*time.Second)
	if o.DialConn == nil {
		o.DialConn = dialTCP
	}
}

// validate names the first field that cannot work. It runs after setDefaults.
func (o *Options) validate() error {
	switch {
	case len(o.Addrs) == 0:
		return errors.New("options: Addrs is empty")
	case o.Handler == nil && !o.Publisher:
		return errors.New("options: Handler is nil and Publisher is not set")
	case o.User == "" && o.Token == nil:
		return errors.New("options: User is empty and there is no Token to name it")
	case o.User != "" && !codec.ValidUser([]byte(o.User)):
		return fmt.Errorf("options: User %q: 1-%d bytes of UTF-8 without control characters", o.User, codec.UserBytesMax)
	case o.Device != "" && !codec.ValidDevice([]byte(o.Device)):
		return fmt.Errorf("options: Device %q: 1-%d bytes of UTF-8 without control characters", o.Device, codec.DeviceBytesMax)
	case o.Concurrency < 1:
		return errors.New("options: Concurrency is negative")
	case o.Inline && o.Concurrency > 1:
		return errors.New("options: Inline runs one handler at a time; Concurrency must be 1")
	case o.AckBatch < 1 || o.AckBatch > codec.AckRangesMax:
		return fmt.Errorf("options: AckBatch must be 1-%d", codec.AckRangesMax)
	case o.PublishBatch < 1 || o.PublishBatch > codec.PublishItemsMax:
		return fmt.Errorf("options: PublishBatch must be 1-%d", codec.PublishItemsMax)
	case o.PublishQueue < 1:
		return errors.New("options: PublishQueue is negative")
	case o.Keepalive < 0 || o.DialTimeout < 0 || o.RetryDelay < 0:
		return errors.New("options: a negative duration")
	case o.WindowMsgs < 0 || o.WindowBytes < 0:
		return errors.New("options: a negative window")
	case o.BackoffBase < 0 || o.BackoffMax < o.BackoffBase:
		return errors.New("options: BackoffMax is less than BackoffBase")
	}
	return nil
}

// dialTCP opens a TCP connection. No keep-alive probes of the kernel: the protocol has its own, which also notice a
// server that is up but stuck.
func dialTCP(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{KeepAlive: -1}
	return d.DialContext(ctx, "tcp", addr)
}
