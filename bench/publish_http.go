package bench

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// answerMax is how long an HTTP publisher waits for its answer.
const answerMax = 30 * time.Second

// httpSender publishes over the HTTP port, one request at a time on a connection of its own.
type httpSender struct {
	p       *publishLoad
	client  *http.Client
	url     string
	body    []byte
	payload []byte
}

func newHTTPSender(p *publishLoad) *httpSender {
	return &httpSender{
		p:       p,
		client:  &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1}, Timeout: answerMax},
		url:     strings.TrimRight(p.r.o.Target.API, "/") + "/v1/push",
		payload: make([]byte, p.o.PayloadBytes),
	}
}

func (s *httpSender) close() { s.client.CloseIdleConnections() }

// send waits for the answer: the next request of this publisher comes after it. A request under way when the load ends is still
// waited for, so that its fate is known.
func (s *httpSender) send(ctx context.Context, b *outgoing, done func(int, error, error)) error {
	accepted, why, err := s.post(context.WithoutCancel(ctx), b)
	done(accepted, why, err)
	return err
}

// encode writes the request. The fields are ours and need no escaping, so there is no encoder between us and the clock.
func (s *httpSender) encode(b *outgoing) {
	p := s.p
	body := s.body[:0]
	if p.o.Mode == PublishHTTPBatch {
		body = append(body, '[')
	}
	for i := range b.stamps {
		mark := &b.stamps[i]
		if i > 0 {
			body = append(body, ',')
		}
		mark.put(s.payload)
		body = append(append(body, `{"user":"`...), p.absentUser(mark)...)
		body = append(append(body, `","message_id":"`...), messageID(mark.run, mark.user, mark.seq)...)
		body = append(append(body, `","ttl":"`...), p.o.TTL.String()...)
		body = append(body, `","payload":"`...)
		body = append(base64.StdEncoding.AppendEncode(body, s.payload), `"}`...)
	}
	if p.o.Mode == PublishHTTPBatch {
		body = append(body, ']')
	}
	s.body = body
}

func (s *httpSender) post(ctx context.Context, b *outgoing) (accepted int, why, err error) {
	s.encode(b)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(s.body))
	if err != nil {
		return 0, nil, fmt.Errorf("publishing over HTTP: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	if token := s.p.r.o.Target.APIToken; token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return 0, nil, fmt.Errorf("publishing over HTTP: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	if err != nil {
		return 0, nil, fmt.Errorf("publishing over HTTP: %w", err)
	}
	return readAnswer(resp.StatusCode, answer, len(b.stamps), s.p.o.Mode == PublishHTTPBatch)
}

// readAnswer takes the number of accepted messages from an answer. A refusal that may pass is no error; one that says that the
// requests are wrong, or whose outcome is unknown, is.
func readAnswer(status int, answer []byte, sent int, batch bool) (accepted int, why, err error) {
	switch {
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable, status == http.StatusInsufficientStorage:
		return 0, fmt.Errorf("HTTP status %d %s", status, http.StatusText(status)), nil
	case status >= 300:
		return 0, nil, fmt.Errorf("publishing over HTTP: status %d: %s", status, answer[:min(len(answer), 200)])
	case !batch:
		return sent, nil, nil
	}
	// The counts come last; what is before them is not looked at, which keeps the generator out of its own way.
	at := bytes.LastIndex(answer, []byte(`"counts":`))
	if at < 0 {
		return 0, nil, errors.New("publishing over HTTP: the answer has no counts")
	}
	var counts struct{ Accepted, Duplicate int }
	if err := json.NewDecoder(bytes.NewReader(answer[at+len(`"counts":`):])).Decode(&counts); err != nil {
		return 0, nil, fmt.Errorf("publishing over HTTP: reading the counts: %w", err)
	}
	if accepted = counts.Accepted + counts.Duplicate; accepted < sent {
		why = errors.New("refused in a batch")
	}
	return accepted, why, nil
}
