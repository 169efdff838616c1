package bench

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Part is what one generator process does of a scenario.
type Part struct {
	// Parameters are the scenario's options for this part.
	Parameters any
	// First is the number of the first user, by the label of their fleet.
	First map[string]int
}

// Limits of what a run may be asked for. Beyond them a mistyped number would fill the machine before anybody noticed.
const (
	usersMax     = 1_000_000
	rateMax      = 100e6 // messages a second
	processesMax = 64
)

// rateFits reports whether an open loop can be run at this rate; 0 is none.
func rateFits(perSecond float64) bool { return perSecond >= 0 && perSecond <= rateMax } // not so: NaN

var (
	errRate  = fmt.Errorf("the rate must be 0 to %.0f messages a second", float64(rateMax))
	errUsers = fmt.Errorf("users and connections are at most %d", usersMax)
)

// ErrUsage is in the errors that say that options do not fit together.
var ErrUsage = errors.New("bench: usage")

// share is the part of total that falls to process i of n, and where it begins.
func share(total, n, i int) (from, count int) {
	from = total * i / n
	return from, total*(i+1)/n - from
}

// splitUsers makes a part for each process by its share of the users; fill says what it does for them.
func splitUsers(users, n int, label string, fill func(i, users int, part float64) any) ([]Part, error) {
	if n > users {
		return nil, fmt.Errorf("%w: %d processes are more than there are users", ErrUsage, n)
	}
	parts := make([]Part, n)
	for i := range parts {
		from, count := share(users, n, i)
		parts[i] = Part{Parameters: fill(i, count, float64(count)/float64(users)), First: map[string]int{label: from}}
	}
	return parts, nil
}

// part is the load on some of the users. Every process has publishers of its own, so that one user's messages come over one
// connection.
func (o *FanoutOptions) part(n, i, users int, part float64) FanoutOptions {
	x := *o
	_, x.Publishers = share(o.Publishers, n, i)
	x.Users, x.Publishers, x.Rate = users, min(max(x.Publishers, 1), users), o.Rate*part
	if o.Messages > 0 {
		_, messages := share(int(o.Messages), n, i)
		x.Messages = max(int64(messages), 1)
	}
	return x
}

func (o *FanoutOptions) split(n int) ([]Part, error) {
	return splitUsers(o.Users, n, "", func(i, users int, part float64) any { return o.part(n, i, users, part) })
}

func (o *MisbehaveOptions) split(n int) ([]Part, error) {
	parts, err := splitUsers(o.Users, n, "", func(i, users int, part float64) any {
		x := *o
		x.FanoutOptions = o.part(n, i, users, part)
		return x
	})
	for i := range parts {
		x, ok := parts[i].Parameters.(MisbehaveOptions)
		if ok && int(x.Share*float64(x.Users)) < 1 {
			return nil, fmt.Errorf("%w: with %d processes no user of the first one misbehaves: fewer processes or a larger share", ErrUsage, n)
		}
	}
	return parts, err
}

func (o *PublishOptions) split(n int) ([]Part, error) {
	return splitUsers(o.Users, n, "absent", func(i, users int, part float64) any {
		x := *o
		_, x.Publishers = share(o.Publishers, n, i)
		x.Users, x.Publishers, x.Rate = users, min(max(x.Publishers, 1), users), o.Rate*part
		return x
	})
}

func (o *StormOptions) split(n int) ([]Part, error) {
	if o.Users < n*stormPublishers || (o.LiveUsers > 0 && o.LiveUsers < n*stormPublishers) {
		return nil, fmt.Errorf("%w: each of %d processes needs %d users, and as many live ones if there are any", ErrUsage, n, stormPublishers)
	}
	parts, err := splitUsers(o.Users, n, "backlog", func(i, users int, part float64) any {
		x := *o
		x.Users = users
		_, x.LiveUsers = share(o.LiveUsers, n, i)
		if o.LiveUsers > 0 {
			x.LiveRate = o.LiveRate * float64(x.LiveUsers) / float64(o.LiveUsers)
		}
		if o.AtOnce > 0 {
			_, atOnce := share(o.AtOnce, n, i)
			x.AtOnce = max(atOnce, 1)
		}
		return x
	})
	for i := range parts {
		parts[i].First["live"], _ = share(o.LiveUsers, n, i)
	}
	return parts, err
}

// partOf makes the scenario of a part again, in the process that runs it.
func partOf(name string, parameters json.RawMessage) (Scenario, error) {
	switch name {
	case "fanout":
		return partWith(parameters, Fanout)
	case "storm":
		return partWith(parameters, Storm)
	case "slow":
		return partWith(parameters, Slow)
	case "ackstorm":
		return partWith(parameters, AckStorm)
	case "publish":
		return partWith(parameters, Publish)
	case "verify":
		return partOfVerify(parameters)
	}
	return Scenario{}, fmt.Errorf("no part of %q can be done here", name)
}

func partWith[O any](parameters json.RawMessage, make func(O) (Scenario, error)) (Scenario, error) {
	var o O
	if err := json.Unmarshal(parameters, &o); err != nil {
		return Scenario{}, fmt.Errorf("reading the parameters: %w", err)
	}
	return make(o)
}
