package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"holdfast/codec"
)

// derive fills in what a setting left to us, before the check.
func (c *Config) derive() {
	if len(c.Auth.Keys) > 0 && c.isDefault("auth.mode") {
		c.Auth.Mode = "jwt"
		c.byKey["auth.mode"].origin = "implied by auth.keys (" + c.origin("auth.keys") + ")"
	}
	if c.TCP.Listen == "auto" {
		c.TCP.Listen = "127.0.0.1:7700"
		if c.Auth.Mode == "jwt" {
			c.TCP.Listen = ":7700"
		}
		if o := c.byKey["tcp.listen"]; o.origin == originDefault {
			o.origin = "default: auto, auth.mode is " + c.Auth.Mode
		}
	}
	if c.Node.Name == "" {
		name, err := os.Hostname()
		if err != nil || name == "" || !codec.ValidNode([]byte(name)) {
			name = "holdfast"
		}
		c.Node.Name = name
		if o := c.byKey["node.name"]; o.origin == originDefault {
			o.origin = "default: the host name"
		}
	}
}

// checker collects what is wrong; every text starts with the key to change.
type checker struct{ problems []error }

// that notes a problem unless ok.
func (k *checker) that(ok bool, format string, args ...any) {
	if !ok {
		k.problems = append(k.problems, fmt.Errorf(format, args...))
	}
}

// between checks a duration against the range that makes sense.
func (k *checker) between(key string, d, low, high time.Duration) {
	k.that(d >= low && d <= high, "%s is %s; it must be from %s to %s", key, formatDuration(d), formatDuration(low), formatDuration(high))
}

// count checks a number against the range that makes sense.
func (k *checker) count(key string, n, low, high int) {
	k.that(n >= low && n <= high, "%s is %d; it must be from %d to %d", key, n, low, high)
}

// size checks bytes against the range that makes sense.
func (k *checker) size(key string, s, low, high Size) {
	k.that(s >= low && s <= high, "%s is %s; it must be from %s to %s", key, s, low, high)
}

// rate checks a number per second; 0 stands for no limit.
func (k *checker) rate(key string, r float64) {
	k.that(r >= 0 && r <= 1e9, "%s is %v; it must be from 0 (no limit) to 1e9", key, r)
	k.that(r == 0 || r >= 1, "%s is %v; less than one a second would stall, use 0 for no limit", key, r)
}

// check names every value that is out of range and every relation that cannot hold.
func (c *Config) check() error {
	k := &checker{}
	k.that(codec.ValidNode([]byte(c.Node.Name)),
		"node.name is %q; it must be at most %d bytes of UTF-8 without control characters: clients refuse a WELCOME with another", c.Node.Name, codec.NodeBytesMax)
	c.checkAck(k)
	c.checkStore(k)
	c.checkTCP(k)
	c.checkAuth(k)
	return errors.Join(k.problems...)
}

// checkAck covers what is in flight, retried and limited.
func (c *Config) checkAck(k *checker) {
	k.between("ack.timeout", c.Ack.Timeout, 100*time.Millisecond, time.Hour)
	k.count("ack.window_messages", c.Ack.WindowMessages, 1, 4096)
	k.size("ack.window_bytes", c.Ack.WindowBytes, 1<<10, 1<<30)
	k.count("ack.user_unacked_max", c.Ack.UserUnackedMax, 1, 1<<20)
	k.count("ack.user_parked_max", c.Ack.UserParkedMax, 1, 1<<20)
	k.that(c.Ack.WindowMessages <= c.Ack.UserUnackedMax,
		"ack.window_messages (%d) must not be above ack.user_unacked_max (%d): one device alone would be over its user's limit", c.Ack.WindowMessages, c.Ack.UserUnackedMax)
	k.that(c.Ack.WindowBytes >= c.Message.PayloadMax,
		"ack.window_bytes (%s) must hold one message of message.payload_max (%s)", c.Ack.WindowBytes, c.Message.PayloadMax)

	k.count("retry.live_attempts_max", c.Retry.LiveAttemptsMax, 1, 255)
	k.count("retry.life_attempts_max", c.Retry.LifeAttemptsMax, 1, 10000)
	k.that(c.Retry.LiveAttemptsMax <= c.Retry.LifeAttemptsMax,
		"retry.live_attempts_max (%d) must not be above retry.life_attempts_max (%d)", c.Retry.LiveAttemptsMax, c.Retry.LifeAttemptsMax)
	k.that(c.Retry.BudgetShare >= 0 && c.Retry.BudgetShare <= 1, "retry.budget_share is %v; it is a share, from 0 to 1", c.Retry.BudgetShare)
	k.that(c.Retry.BudgetFloor >= 1 && c.Retry.BudgetFloor <= 1e9,
		"retry.budget_floor is %d; below 1 a quiet node would not retry at all", c.Retry.BudgetFloor)
	c.checkMessage(k)
}

// checkMessage covers the pace of the backlog and the limits of one message.
func (c *Config) checkMessage(k *checker) {
	k.rate("backlog.user_rate", c.Backlog.UserRate)
	k.rate("backlog.node_rate", c.Backlog.NodeRate)
	k.that(c.Backlog.NodeRate == 0 || c.Backlog.UserRate <= c.Backlog.NodeRate,
		"backlog.user_rate (%v) must not be above backlog.node_rate (%v)", c.Backlog.UserRate, c.Backlog.NodeRate)

	k.size("message.payload_max", c.Message.PayloadMax, 1, codec.FrameBytesMax)
	k.that(c.Message.PayloadMax+pushOverheadMax <= c.TCP.FrameMax,
		"message.payload_max (%s) must be at least %s below tcp.frame_max (%s): the ids of a message travel in the same frame", c.Message.PayloadMax, Size(pushOverheadMax), c.TCP.FrameMax)
	k.between("message.ttl_max", c.Message.TTLMax, time.Second, 3650*day)
	k.that(c.Message.TTLMax > c.Ack.Timeout, "message.ttl_max (%s) must be above ack.timeout (%s)", formatDuration(c.Message.TTLMax), formatDuration(c.Ack.Timeout))
	k.between("message.nack_delay_max", c.Message.NackDelayMax, 100*time.Millisecond, c.Message.TTLMax)
	k.that(c.Message.ExtendMax >= c.Ack.Timeout && c.Message.ExtendMax <= c.Message.TTLMax,
		"message.extend_max (%s) must be from ack.timeout (%s) to message.ttl_max (%s)", formatDuration(c.Message.ExtendMax), formatDuration(c.Ack.Timeout), formatDuration(c.Message.TTLMax))
}

// pushOverheadMax is the most a PUSH frame holds beside its payload: header, numbers, ids and type at their limits.
const pushOverheadMax = 512

// checkStore covers the embedded store.
func (c *Config) checkStore(k *checker) {
	s := &c.Store
	k.that(s.Dir != "", "store.dir is empty; name a directory")
	k.between("store.sync_interval", s.SyncInterval, time.Millisecond, time.Minute)
	k.between("store.commit_delay", s.CommitDelay, 10*time.Microsecond, time.Second)
	k.size("store.segment_bytes", s.SegmentBytes, 1<<20, 1<<30)
	k.that(s.BytesMax >= 4*s.SegmentBytes, "store.bytes_max (%s) must be at least 4 times store.segment_bytes (%s): space is freed a segment at a time", s.BytesMax, s.SegmentBytes)
	k.count("store.queue_messages_max", s.QueueMessagesMax, 1, 1<<30)
	k.that(s.QueueBytesMax >= c.Message.PayloadMax, "store.queue_bytes_max (%s) must hold one message of message.payload_max (%s)", s.QueueBytesMax, c.Message.PayloadMax)
	k.that(s.QueueBytesMax <= s.BytesMax, "store.queue_bytes_max (%s) must not be above store.bytes_max (%s)", s.QueueBytesMax, s.BytesMax)
	k.between("store.dedup_window", s.DedupWindow, time.Second, 365*day)
	k.count("store.dedup_entries_max", s.DedupEntriesMax, 1000, 1<<30)
	k.count("store.dead_letters_max", s.DeadLettersMax, 1, 1<<30)
	k.between("store.device_retention", s.DeviceRetention, time.Minute, 3650*day)
	k.count("store.devices_per_user_max", s.DevicesPerUser, 1, 10000)
	k.count("store.queues_max", s.QueuesMax, 1, 1<<30)
	k.size("store.pending_bytes_max", s.PendingBytesMax, max(1<<20, 2*c.TCP.FrameMax), 512<<20)
}

// checkTCP covers the binary port.
func (c *Config) checkTCP(k *checker) {
	t := &c.TCP
	k.count("tcp.loops", t.Loops, 0, 1024)
	k.count("tcp.connections_max", t.ConnectionsMax, 0, 1<<26)
	k.between("tcp.login_timeout", t.LoginTimeout, 100*time.Millisecond, 5*time.Minute)
	k.between("tcp.keepalive_min", t.KeepaliveMin, time.Second, 24*time.Hour)
	k.between("tcp.keepalive_max", t.KeepaliveMax, time.Second, 24*time.Hour)
	k.that(t.KeepaliveMin%time.Second == 0 && t.KeepaliveMax%time.Second == 0 && t.Keepalive%time.Second == 0,
		"tcp.keepalive, tcp.keepalive_min and tcp.keepalive_max must be whole seconds: that is how they travel")
	k.that(t.KeepaliveMin <= t.Keepalive && t.Keepalive <= t.KeepaliveMax,
		"tcp.keepalive (%s) must be from tcp.keepalive_min (%s) to tcp.keepalive_max (%s)", formatDuration(t.Keepalive), formatDuration(t.KeepaliveMin), formatDuration(t.KeepaliveMax))
	k.size("tcp.frame_max", t.FrameMax, 16<<10, codec.FrameBytesMax) // a login may be that large [P-FRAME-3]
	k.that(t.OutboxLow >= 1 && t.OutboxLow < t.OutboxHigh, "tcp.outbox_low (%s) must be below tcp.outbox_high (%s)", t.OutboxLow, t.OutboxHigh)
	k.that(t.OutboxHard >= t.OutboxHigh+2*t.FrameMax,
		"tcp.outbox_hard (%s) must leave room for two frames of tcp.frame_max (%s) above tcp.outbox_high (%s)", t.OutboxHard, t.FrameMax, t.OutboxHigh)
	k.that(t.OutboxHigh >= t.FrameMax, "tcp.outbox_high (%s) must hold one frame of tcp.frame_max (%s)", t.OutboxHigh, t.FrameMax)
	k.between("tcp.stuck_close", t.StuckClose, time.Second, time.Hour)
	k.between("tcp.bundle_delay", t.BundleDelay, 0, time.Second)
	k.that(t.BundleDelay%time.Millisecond == 0, "tcp.bundle_delay (%s) must be whole milliseconds; 0s turns it off", t.BundleDelay)
	k.count("tcp.publish_window", t.PublishWindow, 1, 4096)
	c.checkLimits(k)
}

// checkLimits covers logins, lanes and the drain.
func (c *Config) checkLimits(k *checker) {
	k.count("delivery.lanes", c.Delivery.Lanes, 0, 64)
	k.count("delivery.lane_messages_max", c.Delivery.LaneMessagesMax, 16, 1<<24)
	k.size("delivery.lane_bytes_max", c.Delivery.LaneBytesMax, 2*c.TCP.FrameMax, 1<<36)
	k.count("login.device_per_minute", c.Login.DevicePerMinute, 1, 1<<20)
	k.count("login.device_burst", c.Login.DeviceBurst, 1, 1<<20)
	k.between("drain.window", c.Drain.Window, 0, time.Hour)
	k.between("drain.timeout", c.Drain.Timeout, time.Second, time.Hour)
	k.that(c.Drain.Window < c.Drain.Timeout, "drain.window (%s) must be below drain.timeout (%s)", formatDuration(c.Drain.Window), formatDuration(c.Drain.Timeout))
}

// checkAuth refuses what would be open to strangers without somebody having said so.
func (c *Config) checkAuth(k *checker) {
	k.that(c.Auth.Mode != "jwt" || len(c.Auth.Keys) > 0,
		"auth.keys is empty and auth.mode is jwt: name at least one key, for example --jwt-key EdDSA:token.pub.pem")
	k.that(c.Auth.Mode != "none" || len(c.Auth.Keys) == 0,
		"auth.mode is none and auth.keys names keys: they would not be used; set auth.mode to jwt or remove the keys")
	tcpOK := checkAddress(k, "tcp.listen", c.TCP.Listen)
	k.that(!tcpOK || c.Auth.Mode != "none" || c.Auth.InsecureNoAuth || isLoopback(c.TCP.Listen),
		"tcp.listen is %s and auth.mode is none: anyone who reaches that address could read any user's messages. Use tokens (--auth jwt --jwt-key …), listen on 127.0.0.1, or say --insecure-no-auth", c.TCP.Listen)
	if c.HTTP.Listen == "" {
		return
	}
	httpOK := checkAddress(k, "http.listen", c.HTTP.Listen)
	k.that(!httpOK || c.HTTP.Token != "" || c.Auth.InsecureNoAuth || isLoopback(c.HTTP.Listen),
		"http.listen is %s and http.token is empty: anyone who reaches that address could push to any user. Set HOLDFAST_HTTP_TOKEN, listen on 127.0.0.1, or say --insecure-no-auth", c.HTTP.Listen)
	k.that(c.HTTP.Token == "" || len(c.HTTP.Token) >= 16, "http.token has %d characters; use at least 16", len(c.HTTP.Token))
	k.size("http.body_max", c.HTTP.BodyMax, 1<<10, 1<<30)
	k.that(c.HTTP.BodyMax >= 2*c.Message.PayloadMax,
		"http.body_max (%s) must be at least twice message.payload_max (%s): a payload travels in base64", c.HTTP.BodyMax, c.Message.PayloadMax)
	_, tcpPort, _ := net.SplitHostPort(c.TCP.Listen)
	_, httpPort, _ := net.SplitHostPort(c.HTTP.Listen)
	k.that(!tcpOK || !httpOK || tcpPort != httpPort || tcpPort == "0", "tcp.listen and http.listen both name port %s", tcpPort)
}

// checkAddress reports whether text is host:port with a number for a port.
func checkAddress(k *checker, key, text string) bool {
	_, port, err := net.SplitHostPort(text)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	k.that(err == nil, "%s is %q; it must be host:port, for example 127.0.0.1:7700", key, text)
	return err == nil
}

// isLoopback reports whether only this machine reaches the address. A name other than localhost may resolve to anything, so
// it does not count.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
