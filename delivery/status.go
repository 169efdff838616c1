package delivery

// Status is where one delivery (one message to one device) stands. It only moves along the table in Next.
type Status uint8

// The states of one delivery.
const (
	StatusCreated   Status = iota // accepted, nothing decided yet
	StatusRouted                  // its connection, or the node that holds it, is known
	StatusSent                    // handed to the socket
	StatusTimeout                 // no ACK in time
	StatusRetrying                // waiting for its back-off
	StatusOffline                 // OFFLINE_BUFFERED: kept for the next login, or behind the backlog
	StatusResend                  // RESEND_ON_LOGIN: taken from the backlog, about to be sent
	StatusAcked                   // end: the client confirmed it
	StatusExpired                 // end: its time was over
	StatusCancelled               // end: its publisher took it back
	StatusDead                    // end: dead-lettered, with a reason
	statusCount
)

// Reason says why a delivery ended, or waits. The names are stable: JSON, metrics, logs.
type Reason uint8

// The reasons.
const (
	ReasonNone        Reason = iota
	ReasonAttempts           // life limit of attempts reached
	ReasonRefused            // the client said never
	ReasonTTL                // its own time to live
	ReasonRetention          // kept for as long as the server keeps anything
	ReasonLiveLimit          // last live attempt made, and the setting says dead letter
	ReasonUndecodable        // the stored command cannot be read, or no longer fits a frame
	ReasonPublisher          // cancelled by its publisher
	ReasonDeviceGone         // the device was not seen for its retention
	reasonCount
)

// Next reports whether a delivery may move from s to the state to. An end state is left by nothing, so a late or doubled
// confirmation changes nothing; a state does not move to itself.
func (s Status) Next(to Status) bool {
	if s >= statusCount || to >= statusCount || s.End() || s == to {
		return false
	}
	if to.End() {
		// A client can confirm only what was sent to it at some time; expiry, cancelling and dead letters may come any time.
		return to != StatusAcked || s >= StatusSent
	}
	switch s {
	case StatusCreated:
		return to == StatusRouted || to == StatusOffline
	case StatusRouted:
		return to == StatusSent || to == StatusOffline // offline: window or outbox full, it joins the backlog
	case StatusSent:
		return to == StatusTimeout || to == StatusRetrying || to == StatusOffline // retrying: NACK with a delay
	case StatusTimeout:
		return to == StatusRetrying || to == StatusOffline
	case StatusRetrying:
		return to == StatusSent || to == StatusOffline
	case StatusOffline:
		return to == StatusResend
	case StatusResend:
		return to == StatusSent || to == StatusOffline
	default:
		return false
	}
}

// End reports whether s is one of the four states a delivery ends in.
func (s Status) End() bool { return s >= StatusAcked && s <= StatusDead }

// String is the stable name: JSON, traces, logs.
func (s Status) String() string {
	switch s {
	case StatusCreated:
		return "CREATED"
	case StatusRouted:
		return "ROUTED"
	case StatusSent:
		return "SENT"
	case StatusTimeout:
		return "TIMEOUT"
	case StatusRetrying:
		return "RETRYING"
	case StatusOffline:
		return "OFFLINE_BUFFERED"
	case StatusResend:
		return "RESEND_ON_LOGIN"
	case StatusAcked:
		return "ACKED"
	case StatusExpired:
		return "EXPIRED"
	case StatusCancelled:
		return "CANCELLED"
	case StatusDead:
		return "DEAD_LETTER"
	default:
		return "UNKNOWN"
	}
}

// ParseStatus is String the other way round.
func ParseStatus(name string) (Status, bool) {
	for s := range statusCount {
		if s.String() == name {
			return s, true
		}
	}
	return 0, false
}

// String is the stable name: JSON, metric labels, logs. ReasonNone is empty.
func (r Reason) String() string {
	switch r {
	case ReasonNone:
		return ""
	case ReasonAttempts:
		return "attempts"
	case ReasonRefused:
		return "refused"
	case ReasonTTL:
		return "ttl"
	case ReasonRetention:
		return "retention"
	case ReasonLiveLimit:
		return "live_limit"
	case ReasonUndecodable:
		return "undecodable"
	case ReasonPublisher:
		return "publisher"
	case ReasonDeviceGone:
		return "device_gone"
	default:
		return "unknown"
	}
}

// ParseReason is String the other way round.
func ParseReason(name string) (Reason, bool) {
	for r := range reasonCount {
		if r.String() == name {
			return r, true
		}
	}
	return 0, false
}
