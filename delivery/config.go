package delivery

import (
	"fmt"
	"runtime"
	"time"

	"holdfast/ack"
	"holdfast/codec"
	"holdfast/scheduler"
)

// AfterLast says what happens after the last live attempt.
type AfterLast uint8

// The choices.
const (
	AfterLastOffline AfterLast = iota // it waits for the next login of the device
	AfterLastDead                     // it is dead-lettered with ReasonLiveLimit
)

// Config is everything delivery can be told. DefaultConfig fills every field.
type Config struct {
	Node string // this node's name, told in WELCOME

	AckTimeout       time.Duration // from writing a message to its timeout, 10 s
	LiveAttemptsMax  int           // copies on one connection, the first included, 3
	LifeAttemptsMax  int           // copies in a message's life, 20; then it is a dead letter
	AfterLast        AfterLast
	Backoff          scheduler.Backoff // between copies; the first one is capped at 0.4 x AckTimeout
	RetryBudgetShare float64           // retries as a share of fresh deliveries, 0.1
	RetryBudgetFloor int               // retries per second that are always allowed, 100

	WindowMsgs    int // in flight to one device, 64; a client may ask for less
	WindowBytes   int // 256 KiB; one message always fits
	UserResendMax int // timed-out messages of one user kept for resending, 200; more wait for the next login
	UserParkedMax int // parked messages of one user a late ACK still finds in memory, 200

	PublishWindow   int           // PUBLISH frames a publisher may have unanswered, 32; told in WELCOME
	FrameBytesMax   int           // 64 KiB; told in WELCOME
	PayloadBytesMax int           // 60 KiB
	Retention       time.Duration // largest time to live, and that of messages without one, 7 d

	StuckClose   time.Duration // a connection that takes no bytes and gives no ACK is closed after this, 30 s
	NackDelayMax time.Duration // 1 h
	ExtendMax    time.Duration // all EXTENDs of one sending together, 10 min

	LoginsPerMinute   float64 // of one (user, device) while it is connected, 30: caps two clients that fight for one id
	LoginBurst        int     // 15
	PaceNodePerSecond float64 // backlog messages of the node, 500 000; 0: no limit
	PaceUserPerSecond float64 // backlog messages of one device, 20 000; 0: no limit

	Lanes        int // goroutines that own users, 2 x GOMAXPROCS
	LaneItemsMax int // pushes waiting for one lane, 16 384: bulk is refused from 50 %, normal from 90 %, urgent at 100 %
	LaneBytesMax int // and their bytes, 64 MiB
}

// DefaultConfig is what holds without any setting.
func DefaultConfig() Config {
	return Config{
		Node:              "holdfast",
		AckTimeout:        10 * time.Second,
		LiveAttemptsMax:   3,
		LifeAttemptsMax:   20,
		Backoff:           scheduler.Standard(),
		RetryBudgetShare:  0.1,
		RetryBudgetFloor:  100,
		WindowMsgs:        64,
		WindowBytes:       256 << 10,
		UserResendMax:     200,
		UserParkedMax:     200,
		PublishWindow:     32,
		FrameBytesMax:     codec.FrameBytesDefault,
		PayloadBytesMax:   60 << 10,
		Retention:         7 * 24 * time.Hour,
		StuckClose:        30 * time.Second,
		NackDelayMax:      time.Hour,
		ExtendMax:         10 * time.Minute,
		LoginsPerMinute:   30,
		LoginBurst:        15,
		PaceNodePerSecond: 500_000,
		PaceUserPerSecond: 20_000,
		Lanes:             min(2*runtime.GOMAXPROCS(0), ack.Shards),
		LaneItemsMax:      16 << 10,
		LaneBytesMax:      64 << 20,
	}
}

// Validate names the first relation that does not hold.
func (c *Config) Validate() error {
	if err := c.Backoff.Validate(); err != nil {
		return fmt.Errorf("setting Backoff: %w", err)
	}
	names := codec.MessageIDBytesMax + codec.TypeBytesMax + codec.ConversationBytesMax
	checks := []struct {
		holds bool
		text  string
	}{
		{c.AckTimeout >= 100*time.Millisecond, "AckTimeout must be at least 100 ms"},
		{c.AckTimeout <= time.Hour, "AckTimeout must be at most 1 h"},
		{c.LiveAttemptsMax >= 1 && c.LiveAttemptsMax <= 255, "LiveAttemptsMax must be 1 to 255"},
		{c.LifeAttemptsMax >= c.LiveAttemptsMax, "LifeAttemptsMax must not be below LiveAttemptsMax"},
		{c.LifeAttemptsMax <= 10_000, "LifeAttemptsMax must be at most 10000"},
		{c.AfterLast <= AfterLastDead, "AfterLast must be offline or dead"},
		{c.RetryBudgetShare >= 0 && c.RetryBudgetShare <= 1, "RetryBudgetShare must be 0 to 1"},
		{c.RetryBudgetFloor >= 1, "RetryBudgetFloor must be at least 1"},
		{c.WindowMsgs >= 1 && c.WindowMsgs <= ack.WindowMsgsLimit, "WindowMsgs must be 1 to 4096"},
		{c.WindowBytes >= 1 && c.WindowBytes <= 1<<30, "WindowBytes must be 1 to 1 GiB"},
		{c.UserResendMax >= 1, "UserResendMax must be at least 1"},
		{c.UserParkedMax >= 1, "UserParkedMax must be at least 1"},
		{c.PublishWindow >= 1, "PublishWindow must be at least 1"},
		{c.FrameBytesMax <= codec.FrameBytesMax, "FrameBytesMax must be at most 1 MiB"},
		{c.PayloadBytesMax >= 1, "PayloadBytesMax must be at least 1"},
		{c.PayloadBytesMax+names+frameOverheadMax <= c.FrameBytesMax, "PayloadBytesMax must leave 352 bytes for names and header in FrameBytesMax"},
		{c.Retention >= time.Second, "Retention must be at least 1 s"},
		{c.StuckClose >= time.Second, "StuckClose must be at least 1 s"},
		{c.NackDelayMax >= nackDelayMin, "NackDelayMax must be at least 100 ms"},
		{c.ExtendMax >= 0, "ExtendMax must not be negative"},
		{c.LoginsPerMinute > 0 && c.LoginBurst >= 1, "LoginsPerMinute and LoginBurst must be positive"},
		{c.PaceNodePerSecond >= 0 && c.PaceUserPerSecond >= 0, "PaceNodePerSecond and PaceUserPerSecond must not be negative"},
		{c.Lanes >= 1 && c.Lanes <= ack.Shards, "Lanes must be 1 to 64"},
		{c.LaneItemsMax >= 16 && c.LaneBytesMax >= c.FrameBytesMax, "LaneItemsMax must be at least 16, LaneBytesMax at least FrameBytesMax"},
	}
	for _, check := range checks {
		if !check.holds {
			return fmt.Errorf("setting %s", check.text)
		}
	}
	return nil
}
