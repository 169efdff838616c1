package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// apiFlags are the flags of the commands that use the HTTP port.
type apiFlags struct {
	API      string `name:"api" env:"HOLDFAST_API" default:"http://127.0.0.1:7780" placeholder:"URL" help:"HTTP port of the gateway (${default}; also HOLDFAST_API)."`
	APIToken string `name:"api-token" env:"HOLDFAST_API_TOKEN" placeholder:"TOKEN" help:"Bearer token, the gateway's http.token (also HOLDFAST_API_TOKEN)."`
}

// apiBodyMax bounds what is read of an answer.
const apiBodyMax = 16 << 20

// apiError is a refusal by the gateway.
type apiError struct {
	Status  int    `json:"-"`
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Error is the refusal for people.
func (e *apiError) Error() string {
	text := e.Message
	if text == "" {
		text = http.StatusText(e.Status)
	}
	if e.Code != "" {
		text = e.Code + ": " + text
	}
	if e.Status == http.StatusUnauthorized {
		text += " (give the gateway's http.token with --api-token or HOLDFAST_API_TOKEN)"
	}
	return text
}

// unreachableError says that nobody answered; whether a push was accepted is then unknown.
type unreachableError struct {
	base string
	err  error
}

// Error says what to do.
func (e *unreachableError) Error() string {
	return fmt.Sprintf("no gateway answers at %s: start one (holdfast serve) or name its address with --api or HOLDFAST_API: %v", e.base, e.err)
}

// Unwrap gives the network error.
func (e *unreachableError) Unwrap() error { return e.err }

// call sends one request and decodes the answer into out, which may be nil. A refusal is an *apiError, silence an
// *unreachableError, an end of ctx wraps context.Canceled.
func (f *apiFlags) call(ctx context.Context, method, path string, body, out any) error {
	var in io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("encoding the request: %w", err)
		}
		in = bytes.NewReader(raw)
	}
	base := f.API
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(base, "/")+path, in)
	if err != nil {
		return &exitCode{exitUsage, fmt.Errorf("--api %s: %w", f.API, err)}
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if f.APIToken != "" {
		req.Header.Set("Authorization", "Bearer "+f.APIToken)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return noAnswer(ctx, base, unwrapURL(err))
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, apiBodyMax))
	if err != nil {
		return noAnswer(ctx, base, err)
	}
	if resp.StatusCode >= 300 {
		return refusal(resp.StatusCode, raw)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("the answer of %s is not understood; is it a holdfast gateway? %w", base, err)
	}
	return nil
}

// noAnswer tells a gateway that is not there from a person who did not wait.
func noAnswer(ctx context.Context, base string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted before %s answered: %w", base, ctx.Err())
	}
	return &unreachableError{base, err}
}

// refusal reads {"error": {"code", "message"}}.
func refusal(status int, raw []byte) error {
	var body struct {
		Error apiError `json:"error"`
	}
	if err := json.Unmarshal(raw, &body); err != nil {
		body.Error.Message = fmt.Sprintf("HTTP status %d", status)
	}
	body.Error.Status = status
	return &body.Error
}

// unwrapURL drops the method and URL that net/http puts before the reason: our text names the address already.
func unwrapURL(err error) error {
	if inner := errors.Unwrap(err); inner != nil {
		return inner
	}
	return err
}
