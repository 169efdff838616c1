package main

import "time"

// NodeConfig says who the node is.
type NodeConfig struct {
	Name string
}

func (c *NodeConfig) settings(add adder) {
	add("name", &c.Name, "",
		"Name of this node in WELCOME frames, logs and traces. Empty: the host name.")
}

// StoreConfig is the embedded store.
type StoreConfig struct {
	Dir              string
	Sync             string // always, interval
	SyncInterval     time.Duration
	CommitDelay      time.Duration
	SegmentBytes     Size
	BytesMax         Size
	QueueMessagesMax int
	QueueBytesMax    Size
	DedupWindow      time.Duration
	DedupEntriesMax  int
	DeadLettersMax   int
	DeviceRetention  time.Duration
	DevicesPerUser   int
	QueuesMax        int
	PendingBytesMax  Size
}

func (c *StoreConfig) settings(add adder) {
	add("dir", &c.Dir, "./holdfast-data",
		"Directory of the store; created if missing, locked by one process. Everything that was accepted is in here: back it up with the node stopped.")
	add("sync", choice(&c.Sync, "always", "interval"), "always",
		"always: a publisher is answered when its message is on the disk (or was acknowledged before that). interval: answered at once and synced every sync_interval; a power failure or kernel crash may then lose what was accepted since, a killed process does not.")
	add("sync_interval", &c.SyncInterval, "1s",
		"Time between syncs with sync=interval: what was accepted in it is what a power failure can lose.")
	add("commit_delay", &c.CommitDelay, "2ms",
		"How long a commit waits for more messages before it syncs. Longer: fewer syncs, and more messages that are acknowledged before they need writing; it is added to the publisher's latency when the device does not answer.")
	add("segment_bytes", &c.SegmentBytes, "64MiB",
		"Size of one log file. Space comes back a whole file at a time, so smaller files free it sooner and cost more files.")
	add("bytes_max", &c.BytesMax, "10GiB",
		"Most the log files may take on the disk. At the limit publishers are refused with storage_full; nothing stored is dropped.")
	add("queue_messages_max", &c.QueueMessagesMax, "10000",
		"Most messages one device's queue holds. At the limit pushes to it are refused with queue_full, so one absent device cannot fill the disk.")
	add("queue_bytes_max", &c.QueueBytesMax, "10MiB",
		"Most bytes one device's queue holds; the same rule as queue_messages_max.")
	add("dedup_window", &c.DedupWindow, "1d",
		"How long a message id is remembered for its user: a publisher that repeats a push inside it is answered duplicate and nothing is delivered twice.")
	add("dedup_entries_max", &c.DedupEntriesMax, "1048576",
		"Most deliveries remembered after their end, for dedup and for trace. Beyond it the oldest are forgotten before the window is over.")
	add("dead_letters_max", &c.DeadLettersMax, "100000",
		"Most dead letters kept for inspection. Beyond it the oldest is dropped and counted.")
	add("device_retention", &c.DeviceRetention, "30d",
		"A device not seen for this long no longer gets a copy of pushes to its user, so abandoned installations do not collect messages for ever.")
	add("devices_per_user_max", &c.DevicesPerUser, "100",
		"Most devices of one user; a login of a further one is refused. It bounds what one push can multiply into.")
	add("queues_max", &c.QueuesMax, "10000000",
		"Most queues known, one for each (user, device). It bounds the memory that strangers' names can take.")
	add("pending_bytes_max", &c.PendingBytesMax, "8MiB",
		"Most bytes accepted and not yet on the disk. Beyond it publishers are refused as overloaded, which happens when the disk does not keep up.")
}

// TCPConfig is the binary port.
type TCPConfig struct {
	Listen         string // host:port, or auto
	Loops          int
	ConnectionsMax int
	LoginTimeout   time.Duration
	Keepalive      time.Duration
	KeepaliveMin   time.Duration
	KeepaliveMax   time.Duration
	FrameMax       Size
	OutboxHigh     Size
	OutboxLow      Size
	OutboxHard     Size
	StuckClose     time.Duration
	BundleDelay    time.Duration
	PublishWindow  int
}

func (c *TCPConfig) settings(add adder) {
	add("listen", &c.Listen, "auto",
		"Address of the port. auto: 127.0.0.1:7700 while auth.mode is none, :7700 with tokens, so that an open gateway is never reachable from outside by accident.")
	add("loops", &c.Loops, "0",
		"Event loops, each with its own accept queue and sockets. 0: one per core.")
	add("connections_max", &c.ConnectionsMax, "0",
		"Most connections at once; further ones are closed as overloaded. 0: what the process's file limit allows, less a reserve for the store.")
	add("login_timeout", &c.LoginTimeout, "10s",
		"Time from the TCP connection to a complete login; idle strangers must not hold connections.")
	add("keepalive", &c.Keepalive, "60s",
		"Keepalive for clients that ask for none. A connection is cut after 1.5 times its keepalive without a complete frame, plus at most 5 s.")
	add("keepalive_min", &c.KeepaliveMin, "15s",
		"Shortest keepalive a client may have; shorter wishes are raised to it. It bounds the PING load.")
	add("keepalive_max", &c.KeepaliveMax, "10m",
		"Longest keepalive a client may have. It bounds how long a dead connection is taken for a live one.")
	add("frame_max", &c.FrameMax, "64KiB",
		"Largest frame, both ways; a larger one is refused at its header. At least 16KiB, so that the largest login fits, at most 1MiB.")
	add("outbox_high", &c.OutboxHigh, "256KiB",
		"Unsent bytes of one connection at which it gets no more; its messages wait in the store.")
	add("outbox_low", &c.OutboxLow, "64KiB",
		"Unsent bytes at which it goes on.")
	add("outbox_hard", &c.OutboxHard, "1MiB",
		"Unsent bytes at which the connection is closed as a slow consumer.")
	add("stuck_close", &c.StuckClose, "30s",
		"A connection whose socket takes nothing and that acknowledges nothing for this long is closed as a slow consumer; its messages wait for the next login.")
	add("bundle_delay", &c.BundleDelay, "50ms",
		"How long messages for a connection that was written to less than this ago wait for more (16 at most), while its event loop sends more than 15,000 messages a second: leaving together they cost a fraction. A connection that gets less, or a loop with less to do, waits for nothing. 0s: never wait. At most 1s.")
	add("publish_window", &c.PublishWindow, "128",
		"PUBLISH frames a publisher's connection may have unanswered.")
}

// LoginConfig is the admission of logins.
type LoginConfig struct {
	DevicePerMinute int
	DeviceBurst     int
}

func (c *LoginConfig) settings(add adder) {
	add("device_per_minute", &c.DevicePerMinute, "30",
		"Logins one (user, device) may make in a minute; more are answered overloaded with a time to wait. Two clients that share an id and throw each other out are slowed down by it.")
	add("device_burst", &c.DeviceBurst, "15",
		"Logins it may make at once before that rate holds.")
}

// AuthConfig says who may connect.
type AuthConfig struct {
	Mode           string // none, jwt
	Keys           []Key
	InsecureNoAuth bool
}

func (c *AuthConfig) settings(add adder) {
	add("mode", choice(&c.Mode, "none", "jwt"), "none",
		"none: anyone who reaches the port is who he says he is; allowed on loopback only, unless insecure_no_auth is set. jwt: a login needs a signed token (claims sub, dev, role, exp). Setting keys and not the mode means jwt.")
	add("keys", &c.Keys, "",
		"Keys that tokens may be signed with: ALG:FILE or ALG:ID:FILE, comma-separated, or a list of {alg, id, file}. HS256 (shared secret, 32 bytes or more), RS256, EdDSA (public keys, PEM).")
	add("insecure_no_auth", &c.InsecureNoAuth, "false",
		"Allow auth.mode none beyond loopback, and the HTTP port beyond loopback without a token. For closed networks and experiments.")
}

// HTTPConfig is the HTTP port.
type HTTPConfig struct {
	Listen  string
	Token   string
	BodyMax Size
}

func (c *HTTPConfig) settings(add adder) {
	add("listen", &c.Listen, "127.0.0.1:7780",
		"Address of the HTTP port. Empty: no HTTP. It can push to anyone, so beyond loopback it needs http.token (or auth.insecure_no_auth).")
	add("token", &c.Token, "",
		"Bearer token that /v1 requests must carry (metrics, health checks and the API document need none). Prefer the environment, HOLDFAST_HTTP_TOKEN, to the file.")
	add("body_max", &c.BodyMax, "8MiB",
		"Largest body of a push that is not streamed as NDJSON.")
}

// DrainConfig is the way the node stops.
type DrainConfig struct {
	Window  time.Duration
	Timeout time.Duration
}

func (c *DrainConfig) settings(add adder) {
	add("window", &c.Window, "5s",
		"On SIGTERM clients are asked to reconnect elsewhere, spread over this time, so that they do not all log in at once.")
	add("timeout", &c.Timeout, "15s",
		"The process is gone after this time at the latest; what was not acknowledged by then is in the store.")
}

// LogConfig is the log on standard error.
type LogConfig struct {
	Level  string
	Format string
}

func (c *LogConfig) settings(add adder) {
	add("level", choice(&c.Level, "debug", "info", "warn", "error"), "info",
		"Least level that is written. Nothing is logged per message at info.")
	add("format", choice(&c.Format, "text", "json"), "text",
		"text for people, json for collectors.")
}
