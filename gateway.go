package main

import (
	"errors"
	"time"

	"holdfast/codec"
	"holdfast/conn"
	"holdfast/delivery"
)

// gateway joins conn and delivery, which do not know each other: it is conn's Handler and hands each frame to the Dispatcher.
// All its methods run on event loops and block no more than the Dispatcher's do, which is not at all.
type gateway struct {
	d *delivery.Dispatcher
}

// Login implements conn.Handler.
func (g gateway) Login(s *conn.Session, c *codec.Connect, id conn.Identity) {
	g.d.Login(delivery.LoginRequest{
		Peer: s, User: []byte(id.User), Device: []byte(id.Device), Publisher: id.Publisher,
		KeepaliveS: c.KeepaliveS, WindowMsgs: c.WindowMsgs, WindowBytes: c.WindowBytes,
		Left: s.PeerShut(),
	})
}

// Closed implements conn.Handler.
func (g gateway) Closed(s *conn.Session) {
	if l, ok := s.Attachment().(*delivery.Link); ok {
		g.d.Gone(l)
	}
}

// Drained implements conn.Handler.
func (g gateway) Drained(s *conn.Session) {
	if l, ok := s.Attachment().(*delivery.Link); ok {
		g.d.Drained(l)
	}
}

// Frame implements conn.Handler.
func (g gateway) Frame(s *conn.Session, f codec.Frame) (codec.Code, string) {
	l, ok := s.Attachment().(*delivery.Link)
	if !ok {
		return codec.CodeInternal, "a frame came before the login was attached"
	}
	if f.Type == codec.TypePublish {
		return g.publish(s, l, f)
	}
	if l.Publisher() {
		return codec.CodeForbidden, "a publisher may only PUBLISH"
	}
	switch f.Type {
	case codec.TypeAck:
		var a codec.Ack
		if err := codec.DecodeAck(f, &a); err != nil {
			return malformed(err)
		}
		return g.d.Ack(l, &a)
	case codec.TypeNack:
		var n codec.Nack
		if err := codec.DecodeNack(f, &n); err != nil {
			return malformed(err)
		}
		return g.d.Nack(l, &n)
	case codec.TypeExtend:
		var e codec.Extend
		if err := codec.DecodeExtend(f, &e); err != nil {
			return malformed(err)
		}
		return g.d.Extend(l, &e)
	case codec.TypeSend, codec.TypeSync, codec.TypeHeads, codec.TypeRead:
		return g.upstream(s, f)
	default:
		return codec.CodeUnexpectedFrame, "this frame is not sent by clients"
	}
}

// publish turns a PUBLISH frame into a batch. Its PUBLISHED is sent when every item has been decided.
func (g gateway) publish(s *conn.Session, l *delivery.Link, f codec.Frame) (codec.Code, string) {
	if !l.Publisher() {
		return codec.CodeForbidden, "PUBLISH needs the publisher role"
	}
	var p codec.Publish
	if err := codec.DecodePublish(f, &p); err != nil {
		return malformed(err)
	}
	b := delivery.NewBatch()
	r := publishReply{s: s, named: true}
	var item codec.PublishItem
	for {
		more, err := p.Next(&item)
		if err != nil {
			b.Release()
			return malformed(err)
		}
		if !more {
			break
		}
		r.named = r.named && len(item.MessageID) > 0
		b.Add(&item)
	}
	b.Tag, b.Number, b.Done = r, p.Number, published
	g.d.Push(b)
	return codec.CodeNone, ""
}

// publishReply is what is needed to answer a PUBLISH frame.
type publishReply struct {
	s     *conn.Session
	named bool // every item came with its message id, so that success needs no list of ids
}

// published answers a PUBLISH frame and ends its batch. It may run on any goroutine.
func published(b *delivery.Batch) {
	r, ok := b.Tag.(publishReply)
	if !ok {
		panic("holdfast: the batch of a PUBLISH frame has lost its session")
	}
	allOK := r.named
	for i := 0; i < b.Len() && allOK; i++ {
		allOK = b.Result(i).OK()
	}
	if allOK {
		r.s.SendControl(codec.AppendPublished(nil, &codec.Published{Number: b.Number, Count: uint64(b.Len()), AllAccepted: true}))
		b.Release()
		return
	}
	var w codec.PublishedWriter
	w.Reset(b.Number)
	for i := range b.Len() {
		id := b.MessageID(i)
		if !codec.ValidMessageID(id) {
			id = nil // a refused item may have named anything; the answer must be a frame that a client can take
		}
		w.Add(&codec.ItemResult{Result: b.Result(i), MessageID: id})
	}
	r.s.SendControl(w.AppendTo(nil))
	b.Release()
}

// upstream answers the frames whose handling is not in this version as docs/protocol.md says: unavailable, never silence.
func (g gateway) upstream(s *conn.Session, f codec.Frame) (codec.Code, string) {
	switch f.Type {
	case codec.TypeSend:
		var m codec.Send
		if err := codec.DecodeSend(f, &m); err != nil {
			return malformed(err)
		}
		s.SendControl(codec.AppendSent(nil, &codec.Sent{ClientMessageID: m.ClientMessageID, Result: codec.ResultUnavailable}))
	case codec.TypeSync:
		var m codec.Sync
		if err := codec.DecodeSync(f, &m); err != nil {
			return malformed(err)
		}
		s.SendControl(codec.AppendSynced(nil, &codec.Synced{Conversation: m.Conversation, Result: codec.ResultUnavailable}))
	case codec.TypeRead:
		var m codec.Read
		if err := codec.DecodeRead(f, &m); err != nil {
			return malformed(err)
		}
	case codec.TypeHeads:
		var m codec.Heads
		if err := codec.DecodeHeads(f, &m); err != nil {
			return malformed(err)
		}
		if m.Reply {
			return codec.CodeUnexpectedFrame, "the reply to HEADS is not sent by clients"
		}
		var w codec.HeadsWriter
		w.Reset(uint64(time.Now().UnixMilli()))
		s.SendControl(w.AppendTo(nil))
	}
	return codec.CodeNone, ""
}

// malformed is the close code and text of a frame that does not decode.
func malformed(err error) (codec.Code, string) {
	if coded, ok := errors.AsType[*codec.Error](err); ok {
		return coded.Code, coded.Text
	}
	return codec.CodeMalformed, err.Error()
}
