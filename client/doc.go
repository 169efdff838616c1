// Package client is the Go library for holdfast: it keeps one connection to a gateway, hands each message to a handler
// and confirms it, and publishes messages for others.
//
// # Receiving
//
//	c, err := client.Dial(ctx, client.Options{
//		Addrs:   []string{"gateway:7700"},
//		User:    "alice",
//		Handler: func(ctx context.Context, m *client.Message) error { return store(m) },
//	})
//
// The server sends a message until it is confirmed, over disconnects and restarts of either side, always under the
// same Message.ID. The library confirms when the handler has returned nil (see AckMode for the other ways) and does not
// hand over a second copy of a message it remembers as settled. It remembers the last Options.DedupSize ids, and over
// a restart of the program with a DedupStore. So a handler sees a message once, except when the program ends between
// the handler's effect and the mark: a handler whose effect can be repeated, or that keeps Message.ID with its effect,
// has nothing to fear from that.
//
// Handlers run one at a time in the order the server sent, unless Options.Concurrency is higher. A slow handler holds
// nothing else up: keepalives, confirmations and publishing go on, and the server sends no more than the window.
// A message that takes longer than SessionInfo.AckTimeout is sent again; the copy is noted and not handed over.
// Message.Extend avoids it.
//
// # Confirmations
//
// ACKs are merged into as few frames as they can be: they leave when Options.AckBatch of them wait, when
// Options.AckDelay has passed, and at once when no other message is in work. ACKs that could not leave before a
// connection ended are told by message id at the next login.
//
// # Connection
//
// After a disconnect the client comes back by itself, after a random time that grows with each try and never before
// the server's retry-after. What a close code means is codec.Code's Reconnect: a client that was replaced (the device
// logged in elsewhere), refused or revoked does not come back; Done is closed and Err says why. When a token has
// expired, Options.Token is asked for a new one. When a server drains it says GOAWAY; the client opens its next
// connection in the time it was given, and leaves the old one only then.
//
// # Publishing
//
// Publish sends a batch and waits for each message's Result. A message without an id gets a random one, so that sending
// it again after a reconnect cannot double it.
//
// # Cost
//
// An idle client is one goroutine, a 1 KiB read buffer and its socket; a second goroutine runs while messages are
// handled. Options.Inline does without it, for load generators.
package client
