package delivery

import (
	"holdfast/ack"
	"holdfast/codec"
)

// pushChain is Push for the items of a batch that are chained from first.
func (e *Engine) pushChain(b *Batch, first int32, now Now) {
	for i := first; i >= 0; {
		next := b.items[i].next // read before: the batch may be gone after Push
		e.Push(b, int(i), now)
		i = next
	}
}

// Push routes message i of a batch: into the store for every device, and onto the sockets of those that are up to date. Both
// happen at once; the batch hears from the store.
func (e *Engine) Push(b *Batch, i int, now Now) {
	cmd := &b.items[i].cmd
	user := e.users[string(cmd.User)]
	if cmd.NoAck {
		b.items[i].sent = e.fireAndForget(user, cmd)
		b.settle(i, codec.ResultAccepted)
		return
	}
	targets, duplicate, r := e.core.store.Targets(e.targets[:0], cmd.User, cmd.Device, cmd.MessageID, now.WallMs)
	e.targets = targets
	switch {
	case duplicate:
		b.expect(i) // before the store can tell
		if !e.core.store.Join(cmd.User, cmd.MessageID, b, i) {
			b.unexpect(i)
		}
		b.settle(i, codec.ResultDuplicate)
		return
	case r != codec.ResultAccepted:
		b.settle(i, r)
		return
	case len(targets) == 0:
		panic("the store named no queue for an accepted message")
	}
	e.command = AppendCommand(e.command[:0], cmd)
	meta := Meta{MessageID: cmd.MessageID, Priority: cmd.Priority, AcceptedMs: cmd.AcceptedMs, ExpireAtMs: cmd.ExpireAtMs}
	for _, q := range targets {
		b.expect(i)
		ref, r := e.core.store.Append(q, e.command, meta, b, i)
		if r != codec.ResultAccepted {
			b.refusedTarget(i, q, r)
			continue
		}
		if b.watch != nil {
			e.core.watches.add(b.watch, ref)
		}
		if user != nil {
			if l := user.byQueue(q); l != nil {
				e.live(l, cmd, ref, now)
			}
		}
	}
	b.settle(i, codec.ResultAccepted)
}

// live sends a new message of l's queue, or lets it join the backlog: nothing overtakes what waits there (rule 10).
func (e *Engine) live(l *Link, cmd *Command, ref Ref, now Now) {
	if !l.backlog && e.maySend(l, now) {
		item := Item{Ref: ref}
		if e.send(l, cmd, &item, false, now) != sendBlocked {
			return
		}
	}
	e.fallBehind(l, now)
}

// fallBehind makes l read from the store from now on. What makes it go on: room (Wake), Drained, or Tick.
func (e *Engine) fallBehind(l *Link, now Now) {
	l.backlog = true
	if l.hold&(holdStalled|holdParked) != 0 || now.MonoMs < l.retryMs {
		e.tend(l)
	}
}

// sendResult says what became of one message that was to be sent.
type sendResult uint8

const (
	sendDone    sendResult = iota
	sendEnded              // its time was over, or its life: it is not to be sent
	sendBlocked            // no room; it stays where it is
)

// send puts a message into the table and onto the socket, in this order: an ACK may be here before Send returns (rule 1). On
// sendBlocked nothing has changed.
func (e *Engine) send(l *Link, cmd *Command, item *Item, fromBacklog bool, now Now) sendResult {
	c := e.core
	if over, end := c.over(cmd, item, now); over {
		c.endOne(end, now)
		l.cursor[cmd.Priority] = item.Ref.Seq
		return sendEnded
	}
	from := StatusRouted
	if fromBacklog {
		from = StatusResend
	}
	h, number, r := c.table.Add(l.session, ack.Add{
		Ref: fromRef(item.Ref), Bytes: cmd.size(), Attempts: int(item.Attempts),
		Status: move(uint8(from), StatusSent), DeadlineMs: now.MonoMs + c.ackTimeoutMs, NowMs: now.MonoMs,
	})
	switch r {
	case ack.AddOK:
	case ack.AddTableFull:
		l.retryMs = now.MonoMs + storeRetryMs
		return sendBlocked
	default:
		if l.hold&(holdStalled|holdParked) != 0 {
			l.rare().trialMs = now.MonoMs + c.ackTimeoutMs // its full window is no reason to look all the time
		}
		return sendBlocked
	}
	p := cmd.push()
	p.Number, p.Attempt = number, uint64(item.Attempts)+1
	p.Redelivered, p.FromBacklog = item.Sent || item.Attempts > 0, fromBacklog
	e.frame = codec.AppendPush(e.frame[:0], &p)
	if !l.peer.Send(e.frame) {
		if !c.table.Retract(h) {
			c.table.Take(h) // the client confirmed a number it cannot have seen
		}
		l.setHold(holdOutbox)
		return sendBlocked
	}
	l.cursor[cmd.Priority] = item.Ref.Seq
	if l.hold&(holdStalled|holdParked) != 0 {
		more := l.rare()
		more.trialMs = now.MonoMs + c.ackTimeoutMs<<more.trials
		more.trials = min(more.trials+1, trialShiftMax)
	}
	c.budget.Fresh(1)
	c.count.sent.Inc()
	return sendDone
}

// over reports whether a message must not be sent any more, and how it ends then.
func (c *core) over(cmd *Command, item *Item, now Now) (bool, Ending) {
	switch {
	case cmd.ExpireAtMs <= now.WallMs:
		return true, expiry(item.Ref, item.Attempts, cmd.OwnTTL)
	case int(item.Attempts) >= c.config.LifeAttemptsMax:
		return true, Ending{Ref: item.Ref, Status: StatusDead, Attempts: item.Attempts, Reason: ReasonAttempts}
	case cmd.size() > c.config.FrameBytesMax+frameOverheadMax: // the setting was lowered since it was accepted
		return true, Ending{Ref: item.Ref, Status: StatusDead, Attempts: item.Attempts, Reason: ReasonUndecodable}
	default:
		return false, Ending{}
	}
}

// expiry is the end of a message whose time is over: its own time ends it for good; what only the server's retention ends is
// dead-lettered, so that nobody's message disappears without having said so.
func expiry(ref Ref, attempts uint16, ownTTL bool) Ending {
	if ownTTL {
		return Ending{Ref: ref, Status: StatusExpired, Attempts: attempts, Reason: ReasonTTL}
	}
	return Ending{Ref: ref, Status: StatusDead, Attempts: attempts, Reason: ReasonRetention}
}

// fireAndForget writes a message to every connection it is for, past the whole reliability path (R22), and returns to how many.
func (e *Engine) fireAndForget(user *Link, cmd *Command) (sent int32) {
	if user == nil {
		e.core.count.noAckOffline.Inc()
		return 0
	}
	p := cmd.push()
	p.NoAck, p.Attempt = true, 1
	e.frame = codec.AppendPush(e.frame[:0], &p)
	matched := false
	for l := user; l != nil; l = l.next {
		if len(cmd.Device) > 0 && l.device != string(cmd.Device) {
			continue
		}
		matched = true
		if l.peer.Send(e.frame) {
			sent++
			e.core.count.noAckSent.Inc()
		} else {
			e.core.count.noAckOutbox.Inc()
		}
	}
	if !matched {
		e.core.count.noAckOffline.Inc()
	}
	return sent
}
