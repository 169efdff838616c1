package admin

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"holdfast/codec"
	"holdfast/delivery"
)

// userView is the reply about a user.
type userView struct {
	User     string       `json:"user"`
	Online   int          `json:"online"`    // devices connected now
	InFlight int          `json:"in_flight"` // sent, not confirmed, over all devices
	Backlog  backlogView  `json:"backlog"`   // stored and not ended, what is in flight included
	Devices  []deviceView `json:"devices"`
}

type backlogView struct {
	Messages int        `json:"messages"`
	Bytes    int64      `json:"bytes"`
	OldestAt *time.Time `json:"oldest_at,omitempty"`
}

// deviceView is one device of a user.
type deviceView struct {
	Device      string      `json:"device"` // "": the default queue, which the first device takes over
	Online      bool        `json:"online"`
	State       string      `json:"state"`
	SessionID   string      `json:"session_id,omitempty"` // a string: JSON numbers lose 64-bit ids
	Remote      string      `json:"remote,omitempty"`
	ConnectedAt *time.Time  `json:"connected_at,omitempty"`
	LastAckAt   *time.Time  `json:"last_ack_at,omitempty"`
	LastSeenAt  *time.Time  `json:"last_seen_at,omitempty"`
	InFlight    int         `json:"in_flight"`
	Parked      int         `json:"parked"`
	Backlog     backlogView `json:"backlog"`
}

func viewUser(u *delivery.UserInfo) userView {
	v := userView{User: u.User, Devices: make([]deviceView, len(u.Devices))}
	oldest := int64(0)
	for i := range u.Devices {
		d := &u.Devices[i]
		dv := deviceView{
			Device: d.Device, Online: d.Online, State: d.State, Remote: d.Remote, ConnectedAt: stamp(d.ConnectedMs),
			LastAckAt: stamp(d.LastAckMs), LastSeenAt: stamp(d.SeenMs), InFlight: d.InFlight, Parked: d.Parked,
			Backlog: backlogView{Messages: d.Messages, Bytes: d.Bytes, OldestAt: stamp(d.OldestMs)},
		}
		if d.Online {
			v.Online++
			dv.SessionID = strconv.FormatUint(d.SessionID, 16)
		}
		v.InFlight += d.InFlight
		v.Backlog.Messages += d.Messages
		v.Backlog.Bytes += d.Bytes
		if d.OldestMs != 0 && (oldest == 0 || d.OldestMs < oldest) {
			oldest = d.OldestMs
		}
		v.Devices[i] = dv
	}
	v.Backlog.OldestAt = stamp(oldest)
	return v
}

// handleUser is GET /v1/users/{id}. A user nobody ever logged in as or pushed to is not found: the likeliest cause is a typing
// mistake, and an empty list would hide it.
func (s *Server) handleUser(w http.ResponseWriter, req *http.Request) {
	if !noQuery(w, req) {
		return
	}
	user := req.PathValue("id")
	if !codec.ValidUser([]byte(user)) {
		writeProblem(w, problemOf(codec.ResultBadUser), "")
		return
	}
	ctx, cancel := context.WithTimeout(req.Context(), lookTimeout)
	defer cancel()
	u, err := s.parts.Inspector.User(ctx, user)
	switch {
	case err != nil:
		s.failedQuestion(w, err)
	case len(u.Devices) == 0:
		writeProblem(w, problem{code: codeNotFound, text: "this user was never seen: no login, and no message waits"}, "")
	default:
		writeJSON(w, viewUser(&u))
	}
}
