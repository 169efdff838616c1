package conn

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"holdfast/codec"
)

// Config is what a Server needs to know. The zero value of a field stands for its default, named in the comment.
type Config struct {
	Addr  string        // host:port to listen on; port 0 takes a free one. Default ":7700"
	Auth  Authenticator // required
	Log   *slog.Logger  // default slog.Default()
	Loops int           // event loops; default one per core

	// Metrics, when set, gets the counters of Stats under holdfast_conn_*.
	Metrics *metrics.Set

	// ConnsMax bounds the connections; more are answered with CodeOverloaded and closed. Default and upper bound: the descriptor
	// limit of the process less FilesReserve, which keeps files, Redis and the like able to open theirs. Default reserve 128.
	ConnsMax     int
	FilesReserve int

	LoginTimeout  time.Duration // from accept to an accepted CONNECT, whatever trickles in. Default 10 s
	LoginBytesMax int           // bytes a client may send ahead of WELCOME. Default 256 KiB

	// Keepalive bounds. A client wishing for 0 gets the default; others are moved into the bounds.
	KeepaliveDefault time.Duration // default 60 s
	KeepaliveMin     time.Duration // default 1 s
	KeepaliveMax     time.Duration // default 600 s

	FrameBytesMax int // largest frame accepted, as codec.Parse counts it. Default codec.FrameBytesDefault

	// Outbox watermarks. Send refuses while at least HighBytes or HighFrames are queued and works again below LowBytes and
	// LowFrames. Beyond HardBytes, which only SendControl can reach, the connection is closed with CodeSlowConsumer, as it is when a full
	// socket has taken no byte for StallTimeout.
	OutboxHighBytes  int           // default 256 KiB
	OutboxLowBytes   int           // default 64 KiB
	OutboxHardBytes  int           // default 1 MiB, at least HighBytes + 2 frames
	OutboxHighFrames int           // default 4096
	OutboxLowFrames  int           // default 1024
	StallTimeout     time.Duration // default 30 s

	// KernelUnsentBytes bounds what the kernel buffers for a connection beyond what is in flight (TCP_NOTSENT_LOWAT). Without it the
	// kernel hides up to 4 MB per slow reader. Default 64 KiB.
	KernelUnsentBytes int
	// SendBufferBytes fixes SO_SNDBUF; 0 (default) leaves it to the kernel's tuning.
	SendBufferBytes int

	// BundleDelay is how long messages for a connection that was written to less than that ago wait for more while its loop is busy. A connection that gets little is never made to wait, nor are replies. Default 50 ms; below 0: never.
	BundleDelay time.Duration

	LingerTimeout time.Duration // how long a closed connection is read and dropped so that the CLOSE frame arrives. Default 1 s
}

// tickInterval is the granularity of every deadline in this package: fine enough for a keepalive of one second, coarse enough to cost
// nothing.
const tickInterval = 250 * time.Millisecond

func orInt(v *int, def int) {
	if *v == 0 {
		*v = def
	}
}

func orDuration(v *time.Duration, def time.Duration) {
	if *v == 0 {
		*v = def
	}
}

// withDefaults returns c with every zero field filled in.
func (c Config) withDefaults() Config {
	if c.Addr == "" {
		c.Addr = ":7700"
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	orInt(&c.Loops, runtime.GOMAXPROCS(0))
	orInt(&c.FilesReserve, 128)
	orInt(&c.LoginBytesMax, 256<<10)
	orInt(&c.FrameBytesMax, codec.FrameBytesDefault)
	orInt(&c.OutboxHighBytes, 256<<10)
	orInt(&c.OutboxLowBytes, c.OutboxHighBytes/4)
	orInt(&c.OutboxHardBytes, max(1<<20, c.OutboxHighBytes+2*c.FrameBytesMax))
	orInt(&c.OutboxHighFrames, 4096)
	orInt(&c.OutboxLowFrames, max(1, c.OutboxHighFrames/4))
	orInt(&c.KernelUnsentBytes, 64<<10)
	orDuration(&c.LoginTimeout, 10*time.Second)
	orDuration(&c.KeepaliveDefault, 60*time.Second)
	orDuration(&c.KeepaliveMin, time.Second)
	orDuration(&c.KeepaliveMax, 600*time.Second)
	orDuration(&c.StallTimeout, 30*time.Second)
	orDuration(&c.BundleDelay, 50*time.Millisecond)
	orDuration(&c.LingerTimeout, time.Second)
	return c
}

// validate names the relation that does not hold. c has its defaults.
func (c *Config) validate() error {
	for _, v := range []struct {
		name  string
		value int
	}{
		{"loops", c.Loops}, {"files reserve", c.FilesReserve}, {"login bytes max", c.LoginBytesMax},
		{"frame bytes max", c.FrameBytesMax}, {"outbox low bytes", c.OutboxLowBytes}, {"outbox low frames", c.OutboxLowFrames},
		{"kernel unsent bytes", c.KernelUnsentBytes}, {"login timeout", int(c.LoginTimeout)}, {"stall timeout", int(c.StallTimeout)},
		{"linger timeout", int(c.LingerTimeout)}, {"keepalive min", int(c.KeepaliveMin / time.Second)},
	} {
		if v.value <= 0 {
			return fmt.Errorf("conn: %s must be above zero", v.name)
		}
	}
	switch {
	case c.Auth == nil:
		return errors.New("conn: no authenticator")
	case c.ConnsMax < 0:
		return errors.New("conn: connections max must not be negative")
	case c.FrameBytesMax > codec.FrameBytesMax:
		return fmt.Errorf("conn: frame bytes max %d is over the protocol's %d", c.FrameBytesMax, codec.FrameBytesMax)
	case c.OutboxHighBytes <= c.OutboxLowBytes:
		return fmt.Errorf("conn: outbox high bytes %d must be above outbox low bytes %d", c.OutboxHighBytes, c.OutboxLowBytes)
	case c.OutboxHighFrames <= c.OutboxLowFrames:
		return fmt.Errorf("conn: outbox high frames %d must be above outbox low frames %d", c.OutboxHighFrames, c.OutboxLowFrames)
	case c.OutboxHardBytes < c.OutboxHighBytes+2*c.FrameBytesMax:
		return fmt.Errorf("conn: outbox hard bytes %d must leave room for two frames of %d above outbox high bytes %d",
			c.OutboxHardBytes, c.FrameBytesMax, c.OutboxHighBytes)
	case c.OutboxHardBytes > 1<<30:
		return fmt.Errorf("conn: outbox hard bytes %d is over 1 GiB", c.OutboxHardBytes)
	case c.KeepaliveMin > c.KeepaliveDefault || c.KeepaliveDefault > c.KeepaliveMax:
		return fmt.Errorf("conn: keepalive min %s, default %s, max %s must rise", c.KeepaliveMin, c.KeepaliveDefault, c.KeepaliveMax)
	}
	return nil
}

// keepaliveS moves a client's wish into the configured bounds.
func (c *Config) keepaliveS(wishS uint64) uint64 {
	if wishS == 0 {
		return uint64(c.KeepaliveDefault / time.Second)
	}
	return min(max(wishS, uint64(c.KeepaliveMin/time.Second)), uint64(c.KeepaliveMax/time.Second))
}
