package conn

import (
	"math/rand/v2"
	"time"

	"holdfast/codec"
)

// goAway is one call of Server.GoAway on its way through the loops.
type goAway struct {
	window, deadline time.Duration
	servers          []byte
}

// GoAway sends every open session a GOAWAY frame: each is asked to reconnect elsewhere at its own random moment of window, and told that
// deadline is the end. It also calls Drain. It returns at once; closing who stays is up to Stop.
func (s *Server) GoAway(window, deadline time.Duration, servers string) {
	s.Drain()
	for _, l := range s.allLoops() {
		l.goAway.Store(&goAway{window, deadline, []byte(servers)})
		l.wake()
	}
}

func (g *goAway) send(s *Session) {
	after := rand.Int64N(max(1, g.window.Milliseconds()))
	s.SendControl(codec.AppendGoAway(nil, &codec.GoAway{
		ReconnectAfterMs: uint64(after), DeadlineMs: uint64(g.deadline.Milliseconds()), Servers: g.servers,
	}))
}
