package delivery

// describe refines a record by what is in flight.
func (e *Engine) describe(r Record, now Now) Delivery {
	x := Delivery{Record: r}
	l := e.users[r.User].byDevice(r.Device)
	if l == nil {
		return x
	}
	x.Online = true
	if r.Status.End() {
		return x
	}
	if _, entry, ok := e.core.table.Find(l.session, fromRef(r.Ref)); ok {
		x.Status, x.Attempts, x.Number = Status(entry.Status), attemptsMade(&entry), entry.Number
		x.Sent = true
		if entry.DeadlineMs > 0 && entry.Armed {
			x.DueMs = now.WallMs + entry.DeadlineMs - now.MonoMs
		}
	}
	return x
}

// describeUser is what is known of a user's devices.
func (e *Engine) describeUser(user string, now Now) UserInfo {
	info := UserInfo{User: user}
	u := e.users[user]
	for _, q := range e.core.store.UserQueues(user) {
		d := DeviceInfo{QueueInfo: q, State: "offline"}
		if l := u.byQueue(q.ID); l != nil {
			e.describeLink(&d, l, now)
		}
		info.Devices = append(info.Devices, d)
	}
	return info
}

func (e *Engine) describeLink(d *DeviceInfo, l *Link, now Now) {
	state, _ := e.core.table.State(l.session)
	d.Online, d.SessionID, d.Remote, d.State = true, l.sessionID, remoteOf(l.peer), l.describe()
	d.InFlight, d.Parked, d.ConnectedMs = state.InFlight, state.Parked, l.connectedMs
	if state.LastAckMs > 0 {
		d.LastAckMs = now.WallMs + state.LastAckMs - now.MonoMs
	}
}

// remoteOf is the address of a connection, for operators, where it knows one.
func remoteOf(p Peer) string {
	if known, ok := p.(interface{ RemoteAddr() string }); ok {
		return known.RemoteAddr()
	}
	return ""
}
