package main

import (
	"context"
	"fmt"
	"log/slog"
	"syscall"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"holdfast/admin"
	"holdfast/conn"
	"holdfast/delivery"
	"holdfast/scheduler"
	"holdfast/store"
)

// The mappings from the one Config to the parts' own: no package of ours can import configuration.

func (c *Config) storeConfig(log *slog.Logger) store.Config {
	s := &c.Store
	mode := store.SyncAlways
	if s.Sync == "interval" {
		mode = store.SyncInterval
	}
	return store.Config{
		Dir: s.Dir, Sync: mode, SyncInterval: s.SyncInterval, CommitDelay: s.CommitDelay, SegmentBytes: int64(s.SegmentBytes),
		QueueMessagesMax: s.QueueMessagesMax, QueueBytesMax: int64(s.QueueBytesMax), StorageBytesMax: int64(s.BytesMax),
		DeadLettersMax: s.DeadLettersMax, DedupWindow: s.DedupWindow, DedupMax: s.DedupEntriesMax,
		DeviceRetention: s.DeviceRetention, DevicesPerUserMax: s.DevicesPerUser, QueuesMax: s.QueuesMax,
		PendingBytesMax: int(s.PendingBytesMax), Log: log,
	}
}

func (c *Config) deliveryConfig() delivery.Config {
	d := delivery.DefaultConfig()
	d.Node = c.Node.Name
	d.AckTimeout, d.WindowMsgs, d.WindowBytes = c.Ack.Timeout, c.Ack.WindowMessages, int(c.Ack.WindowBytes)
	d.UserResendMax, d.UserParkedMax = c.Ack.UserUnackedMax, c.Ack.UserParkedMax
	d.LiveAttemptsMax, d.LifeAttemptsMax = c.Retry.LiveAttemptsMax, c.Retry.LifeAttemptsMax
	if c.Retry.AfterLast == "dead" {
		d.AfterLast = delivery.AfterLastDead
	}
	backoff, ok := scheduler.ParsePreset(c.Retry.Preset)
	if !ok {
		panic(fmt.Sprintf("retry.preset %q passed its check", c.Retry.Preset))
	}
	d.Backoff = backoff
	d.RetryBudgetShare, d.RetryBudgetFloor = c.Retry.BudgetShare, c.Retry.BudgetFloor
	d.PaceUserPerSecond, d.PaceNodePerSecond = c.Backlog.UserRate, c.Backlog.NodeRate
	d.PayloadBytesMax, d.FrameBytesMax = int(c.Message.PayloadMax), int(c.TCP.FrameMax)
	d.Retention, d.NackDelayMax, d.ExtendMax = c.Message.TTLMax, c.Message.NackDelayMax, c.Message.ExtendMax
	d.StuckClose, d.PublishWindow = c.TCP.StuckClose, c.TCP.PublishWindow
	if c.Delivery.Lanes > 0 {
		d.Lanes = c.Delivery.Lanes
	}
	d.LaneItemsMax, d.LaneBytesMax = c.Delivery.LaneMessagesMax, int(c.Delivery.LaneBytesMax)
	d.LoginsPerMinute, d.LoginBurst = float64(c.Login.DevicePerMinute), c.Login.DeviceBurst
	return d
}

// filesReserve is how many descriptors connections must leave alone: one for each segment the store may have open, with as many for
// copies on their way, and some for all the rest. A store that cannot open its next segment stops the node. Of a small descriptor
// limit it takes half, for a node without connections is of no use either.
func (c *Config) filesReserve() int {
	reserve := 128 + 2*uint64(c.Store.BytesMax/max(c.Store.SegmentBytes, 1))
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err == nil {
		reserve = min(reserve, files.Cur/2)
	}
	return int(reserve)
}

func (c *Config) connConfig(auth conn.Authenticator, set *metrics.Set, log *slog.Logger) conn.Config {
	t := &c.TCP
	return conn.Config{
		FilesReserve: c.filesReserve(),
		Addr:         c.TCP.Listen, Auth: auth, Log: log, Loops: t.Loops, Metrics: set, ConnsMax: t.ConnectionsMax,
		LoginTimeout: t.LoginTimeout, KeepaliveDefault: t.Keepalive, KeepaliveMin: t.KeepaliveMin, KeepaliveMax: t.KeepaliveMax,
		FrameBytesMax: int(t.FrameMax), OutboxHighBytes: int(t.OutboxHigh), OutboxLowBytes: int(t.OutboxLow),
		OutboxHardBytes: int(t.OutboxHard), StallTimeout: t.StuckClose, BundleDelay: bundleDelay(t.BundleDelay),
	}
}

// bundleDelay is the setting as conn has it, where 0 is the default.
func bundleDelay(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

func (c *Config) adminConfig() admin.Config {
	a := admin.DefaultConfig()
	a.Addr, a.Token, a.BodyBytesMax, a.Retention = c.HTTP.Listen, c.HTTP.Token, int(c.HTTP.BodyMax), c.Message.TTLMax
	return a
}

// authenticator makes what logins are checked with; auth.mode and its relations have been checked before.
func (c *Config) authenticator() (conn.Authenticator, error) {
	if c.Auth.Mode == "none" {
		return conn.NoAuth{}, nil
	}
	keys := make([]conn.Key, 0, len(c.Auth.Keys))
	for _, k := range c.Auth.Keys {
		key, err := conn.LoadKey(conn.Algorithm(k.Alg), k.ID, k.File)
		if err != nil {
			return nil, fmt.Errorf("auth.keys: %w", err)
		}
		keys = append(keys, key)
	}
	return conn.NewJWT(conn.JWTConfig{Keys: keys})
}

// deadLetters shows the store's dead letters to the HTTP side.
type deadLetters struct{ store *store.Local }

// DeadLetters implements admin.DeadLetters.
func (d deadLetters) DeadLetters(after uint64, n int) ([]admin.DeadLetter, error) {
	list, err := d.store.DeadLetters(after, n)
	if err != nil {
		return nil, err
	}
	out := make([]admin.DeadLetter, len(list))
	for i, l := range list {
		out[i] = admin.DeadLetter{Record: l.Record, Command: l.Command}
	}
	return out, nil
}

// flushTimeout bounds how long a request waits until what it ended is written.
const flushTimeout = 5 * time.Second

// DropDead implements admin.DeadLetters. It returns when the letter is gone for good: a crash does not bring it back.
func (d deadLetters) DropDead(seq uint64) (bool, error) {
	dropped, err := d.store.DropDead(seq)
	if err != nil || !dropped {
		return dropped, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	return dropped, d.store.Flush(ctx)
}

// inspector is the dispatcher as the HTTP side sees it: a cancel is told when it is written, as an acceptance is.
type inspector struct {
	*delivery.Dispatcher
	store *store.Local
}

// Cancel implements admin.Inspector.
func (i inspector) Cancel(ctx context.Context, messageID string) (after []delivery.Delivery, cancelled int, err error) {
	after, cancelled, err = i.Dispatcher.Cancel(ctx, messageID)
	if err == nil && cancelled > 0 {
		err = i.store.Flush(ctx)
	}
	return after, cancelled, err
}
