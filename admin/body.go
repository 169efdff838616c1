package admin

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"holdfast/codec"
)

// memory is a budget of bytes shared by all request bodies. A node that is pushed to faster than it can store must refuse, not
// grow.
type memory struct {
	used atomic.Int64
	max  int64
}

func (m *memory) take(n int64) bool {
	if m.used.Add(n) <= m.max {
		return true
	}
	m.used.Add(-n)
	return false
}

func (m *memory) give(n int64) { m.used.Add(-n) }

// grow makes room for at least n more bytes of body, out of the budget.
func (r *pushRequest) grow(m *memory, n int) bool {
	if cap(r.body)-len(r.body) >= n && r.charged > 0 {
		return true
	}
	size := max(len(r.body)+n, 2*len(r.body), cap(r.body))
	if !m.take(int64(size) - r.charged) {
		return false
	}
	r.charged = int64(size)
	if size > cap(r.body) {
		r.body = append(make([]byte, 0, size), r.body...)
	}
	return true
}

// release gives the request's memory back.
func (s *Server) release(r *pushRequest) {
	s.bodies.give(r.charged + r.copies)
	r.charged, r.copies = 0, 0
	s.requests.put(r)
}

// limits is what one request may come to: copies as many bytes as four of the largest bodies.
func (s *Server) limits() *limits {
	return &limits{items: s.config.ItemsMax, copies: 4 * int64(s.config.BodyBytesMax), memory: &s.bodies}
}

const (
	readBytesMin = 4 << 10
	overloadText = "the node holds as many request bodies as it may: send again after Retry-After"
)

// readBody reads a whole body into r.body.
func (s *Server) readBody(w http.ResponseWriter, req *http.Request, r *pushRequest) (problem, bool) {
	limit := s.config.BodyBytesMax
	if req.ContentLength > int64(limit) {
		return bodyTooLarge(limit), false
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(s.config.BodyTimeout)) // no deadline: a ResponseWriter of a test
	body := http.MaxBytesReader(w, req.Body, int64(limit))
	r.body = r.body[:0]
	want := readBytesMin
	if req.ContentLength >= 0 {
		want = int(req.ContentLength) + 1 // one more, to see the end without growing
	}
	for {
		if !r.grow(&s.bodies, want) {
			return problem{code: codec.ResultOverloaded.String(), text: overloadText}, false
		}
		n, err := body.Read(r.body[len(r.body):cap(r.body)])
		r.body = r.body[:len(r.body)+n]
		if err == io.EOF {
			break
		}
		if err != nil {
			return bodyProblem(err, limit), false
		}
		want = 1
	}
	// The deadline must not outlive the body: the server reads on in the background to notice a client that goes away, and would
	// take the deadline for that while the reply is being waited for.
	_ = rc.SetReadDeadline(time.Time{})
	return problem{}, true
}

func bodyProblem(err error, limit int) problem {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return bodyTooLarge(limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return problem{code: codeBodyTimeout, text: "the body did not arrive in time"}
	}
	return problem{code: codeBadJSON, text: "the body ends before its announced length"}
}

func bodyTooLarge(limit int) problem {
	return problem{code: codeBodyTooLarge, text: "a body has at most " + strconv.Itoa(limit) +
		" bytes: split it, or stream it as application/x-ndjson"}
}
