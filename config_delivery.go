package main

import "time"

// AckConfig bounds what is in flight to one device.
type AckConfig struct {
	Timeout        time.Duration
	WindowMessages int
	WindowBytes    Size
	UserUnackedMax int
	UserParkedMax  int
}

func (c *AckConfig) settings(add adder) {
	add("timeout", &c.Timeout, "10s",
		"Time a device has to acknowledge a message before that counts as a timeout. A copy follows between 1 and 1.5 times this.")
	add("window_messages", &c.WindowMessages, "64",
		"Most messages in flight to one device; more wait in the store. A client may ask for less.")
	add("window_bytes", &c.WindowBytes, "256KiB",
		"Most bytes in flight to one device (one message always fits).")
	add("user_unacked_max", &c.UserUnackedMax, "200",
		"Most unacknowledged messages of one user over all his devices in the resend path; more wait in the store and are counted.")
	add("user_parked_max", &c.UserParkedMax, "200",
		"Most messages of one device that are parked (out of live attempts) and still found by a late ACK under their request number; beyond it an ACK by message id is needed.")
}

// RetryConfig is what follows a timeout.
type RetryConfig struct {
	Preset          string // standard, steep
	LiveAttemptsMax int
	LifeAttemptsMax int
	AfterLast       string // offline, dead
	BudgetShare     float64
	BudgetFloor     int
}

func (c *RetryConfig) settings(add adder) {
	add("preset", choice(&c.Preset, "standard", "steep"), "standard",
		"Back-off between copies, plus 200-800 ms of jitter. standard: 1s, 2s, 4s … up to 30s. steep: 1s, 4s, 16s. The first one is kept below 0.4 times ack.timeout.")
	add("live_attempts_max", &c.LiveAttemptsMax, "3",
		"Copies sent on one connection, the first included. Then after_last holds: resending faster than the device reads helps nobody.")
	add("life_attempts_max", &c.LifeAttemptsMax, "20",
		"Copies sent in a message's whole life, over reconnects and restarts. Then it is a dead letter (reason attempts). A copy counts only if it could reach the device.")
	add("after_last", choice(&c.AfterLast, "offline", "dead"), "offline",
		"After the last live attempt. offline: it waits for the device's next login. dead: it is a dead letter (reason live_limit).")
	add("budget_share", &c.BudgetShare, "0.1",
		"Retries of the node as a share of fresh deliveries (0 to 1): when many devices stop answering at once, retries must not crowd out what is new.")
	add("budget_floor", &c.BudgetFloor, "100",
		"Retries per second that are always allowed, so that a quiet node retries at all.")
}

// DeliveryConfig sizes the lanes. A user's messages all pass through one lane, in order.
type DeliveryConfig struct {
	Lanes           int
	LaneMessagesMax int
	LaneBytesMax    Size
}

func (c *DeliveryConfig) settings(add adder) {
	add("lanes", &c.Lanes, "0",
		"Goroutines that carry pushes. 0: twice the number of cores.")
	add("lane_messages_max", &c.LaneMessagesMax, "16384",
		"Pushes waiting in front of one lane. Bulk is refused as overloaded from half of it, normal from nine tenths, urgent at the limit.")
	add("lane_bytes_max", &c.LaneBytesMax, "64MiB",
		"Bytes waiting in front of one lane; the same rule.")
}

// BacklogConfig paces what is sent from the store.
type BacklogConfig struct {
	UserRate float64
	NodeRate float64
}

func (c *BacklogConfig) settings(add adder) {
	add("user_rate", &c.UserRate, "20000",
		"Stored messages per second to one user's device after a login. 0: as fast as the window allows. High by default: the window already paces by what is acknowledged.")
	add("node_rate", &c.NodeRate, "500000",
		"Stored messages per second over all users, so that a mass login leaves room for live traffic. 0: no limit.")
}

// MessageConfig limits one message.
type MessageConfig struct {
	PayloadMax   Size
	TTLMax       time.Duration
	NackDelayMax time.Duration
	ExtendMax    time.Duration
}

func (c *MessageConfig) settings(add adder) {
	add("payload_max", &c.PayloadMax, "60KiB",
		"Largest payload; a larger push is refused with too_large. It must leave room for the ids in a frame of tcp.frame_max.")
	add("ttl_max", &c.TTLMax, "7d",
		"How long a message is kept: the largest ttl, and the ttl of messages that name none. One that ends by it (not by its own ttl) becomes a dead letter (reason retention), so it is never lost silently.")
	add("nack_delay_max", &c.NackDelayMax, "1h",
		"Longest delay a client may ask for when it refuses a message for now.")
	add("extend_max", &c.ExtendMax, "10m",
		"Most time a client may ask for, in all, before a message counts as timed out.")
}
