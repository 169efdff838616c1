package admin

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/VictoriaMetrics/metrics"
)

// Config is what an operator may set of the HTTP side. DefaultConfig fills every field.
type Config struct {
	Addr              string        // where to listen; "host:0" takes a free port
	Token             string        // every /v1 call must carry it as a bearer token; empty: none is asked for
	BodyBytesMax      int           // a JSON body. 8 MiB: a full batch of ordinary messages
	LineBytesMax      int           // one line of an NDJSON stream. 2 MiB: the largest frame of the protocol as base64, with room
	BodyMemoryMax     int64         // all request bodies together; over it pushes are refused as overloaded. 256 MiB
	ItemsMax          int           // messages (items times users) of one request, or of one line of a stream. 5000
	GroupItemsMax     int           // messages of a stream that are pushed together. 512
	GroupsMax         int           // groups of one stream on their way at the same time. 4
	ConnsMax          int           // connections; more wait in the kernel's queue. 4096
	BodyTimeout       time.Duration // for a whole JSON body to arrive. 30 s
	IdleTimeout       time.Duration // an idle connection, a stream without a byte. 2 min
	WriteTimeout      time.Duration // for a client to take a reply, or a group of a stream. 30 s
	PushTimeout       time.Duration // for messages to become durable; then the outcome is unknown to the publisher. 30 s
	WaitDefault       time.Duration // of wait=delivered without a timeout. 10 s
	WaitMax           time.Duration // the longest timeout that may be asked for. 60 s
	Retention         time.Duration // the dispatcher's: expires_at of messages without a ttl. 7 d
	ReadHeaderTimeout time.Duration // for the request's head to arrive. 10 s
	DeadLettersLimit  int           // the largest page of the dead-letter list. 1000
}

// DefaultConfig is the configuration of a node on its own machine.
func DefaultConfig() Config {
	return Config{
		Addr:              "127.0.0.1:7780",
		BodyBytesMax:      8 << 20,
		LineBytesMax:      2 << 20,
		BodyMemoryMax:     256 << 20,
		ItemsMax:          5000,
		GroupItemsMax:     512,
		GroupsMax:         4,
		ConnsMax:          4096,
		BodyTimeout:       30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		WriteTimeout:      30 * time.Second,
		PushTimeout:       30 * time.Second,
		WaitDefault:       10 * time.Second,
		WaitMax:           60 * time.Second,
		Retention:         7 * 24 * time.Hour,
		ReadHeaderTimeout: 10 * time.Second,
		DeadLettersLimit:  1000,
	}
}

// Validate names the first value or relation that cannot work.
func (c *Config) Validate() error {
	for _, n := range []struct {
		name  string
		value int64
	}{
		{"BodyBytesMax", int64(c.BodyBytesMax)}, {"LineBytesMax", int64(c.LineBytesMax)}, {"BodyMemoryMax", c.BodyMemoryMax},
		{"ItemsMax", int64(c.ItemsMax)}, {"GroupItemsMax", int64(c.GroupItemsMax)}, {"GroupsMax", int64(c.GroupsMax)},
		{"ConnsMax", int64(c.ConnsMax)}, {"BodyTimeout", int64(c.BodyTimeout)}, {"IdleTimeout", int64(c.IdleTimeout)},
		{"WriteTimeout", int64(c.WriteTimeout)}, {"PushTimeout", int64(c.PushTimeout)}, {"WaitDefault", int64(c.WaitDefault)},
		{"WaitMax", int64(c.WaitMax)}, {"Retention", int64(c.Retention)}, {"ReadHeaderTimeout", int64(c.ReadHeaderTimeout)},
		{"DeadLettersLimit", int64(c.DeadLettersLimit)},
	} {
		if n.value <= 0 {
			return fmt.Errorf("admin config: %s must be above 0", n.name)
		}
	}
	switch {
	case c.Addr == "":
		return errors.New("admin config: Addr is empty")
	case c.WaitDefault > c.WaitMax:
		return fmt.Errorf("admin config: WaitDefault %s is over WaitMax %s", c.WaitDefault, c.WaitMax)
	case int64(max(c.BodyBytesMax, c.LineBytesMax)) > c.BodyMemoryMax:
		return fmt.Errorf("admin config: BodyMemoryMax %d is less than one body or line may have", c.BodyMemoryMax)
	}
	return nil
}

// Parts is what the HTTP side works with. Pusher and Inspector are needed.
type Parts struct {
	Pusher      Pusher
	Inspector   Inspector
	DeadLetters DeadLetters           // nil: the list is empty
	Metrics     *metrics.Set          // nil: one of its own
	Process     func(io.Writer)       // what /metrics shows besides the set; nil: the Go runtime and the process
	Ready       func() (bool, string) // for /readyz, with the reason when it is not; nil: always
	Log         *slog.Logger          // nil: nothing is logged
}
