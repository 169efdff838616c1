package delivery

// Status is where one delivery (one message to one device) stands. It only moves forward along the table in Next.
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
	ReasonUndecodable        // the stored command cannot be read
	ReasonPublisher          // cancelled by its publisher
	ReasonDeviceGone         // the device was not seen for its retention
)
