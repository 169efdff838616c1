package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"
)

// MQTTLogin is with what the connections log in to an MQTT 3.1.1 broker, which is driven at QoS 1.
type MQTTLogin struct {
	User     string // empty: none
	Password string
}

// ParseTarget reads what is driven: mqtt://[user:password@]host[:port] or holdfast://host:port. mqtt is nil for a holdfast gateway.
func ParseTarget(text string) (addr string, mqtt *MQTTLogin, err error) {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
		return "", nil, errors.New("a target is mqtt://[user:password@]host[:port] or holdfast://host:port")
	}
	port := u.Port()
	switch u.Scheme {
	case "holdfast":
		if port == "" || u.User != nil {
			return "", nil, errors.New("a gateway is holdfast://host:port; it takes tokens, not passwords")
		}
	case "mqtt":
		if port == "" {
			port = "1883"
		}
		mqtt = &MQTTLogin{User: u.User.Username()}
		mqtt.Password, _ = u.User.Password()
		if mqtt.User == "" && mqtt.Password != "" {
			return "", nil, errors.New("MQTT 3.1.1 takes no password without a user")
		}
	default:
		return "", nil, fmt.Errorf("the target %q: it is mqtt:// or holdfast://; there is no TLS in the generator", text)
	}
	return net.JoinHostPort(u.Hostname(), port), mqtt, nil
}

// String is the target as the report names it, without the password.
func (t *Target) String() string {
	if t.MQTT != nil {
		return "mqtt://" + t.Addr
	}
	return t.Addr
}

// Suits reports why a scenario cannot drive the target; nil: it can.
func (t *Target) Suits(s *Scenario) error {
	switch {
	case t.MQTT == nil:
		return nil
	case !s.MQTT:
		return fmt.Errorf("%s drives a holdfast gateway only; fanout, idle and storm drive an MQTT broker too", s.Name)
	case t.Start != nil || t.Token != nil:
		return errors.New("a gateway that is started and login tokens are holdfast's, not an MQTT broker's")
	}
	return nil
}

// mqttOptions are those of every connection.
func (t *Target) mqttOptions(clientID string) mqttOptions {
	return mqttOptions{
		addr:      t.Addr,
		mqttLogin: mqttLogin{clientID: clientID, user: t.MQTT.User, password: t.MQTT.Password, clean: true},
	}
}

// dialMQTTPublisher logs a publisher in to the broker.
func (r *Run) dialMQTTPublisher(ctx context.Context, name string) (publishing, error) {
	return dialMQTTPublisher(ctx, r.o.Target.mqttOptions(name))
}

// mqttOptions are a receiver's: it hears one topic, its name.
func (rc *receiver) mqttOptions() mqttOptions {
	name := rc.f.userName(rc.index)
	o := rc.f.r.o.Target.mqttOptions(name)
	o.topic = name
	o.message = rc.take
	o.acked = func() { rc.noteAcked(rc.takeHandled()) }
	return o
}

// dialMQTT logs a receiver in to the broker; with a backlog, to the session that waits for it there.
func (rc *receiver) dialMQTT(ctx context.Context, attempts int) (receiving, error) {
	o := rc.mqttOptions()
	if rc.f.o.backlog == 0 {
		return dialMQTT(ctx, o, attempts)
	}
	o.clean, o.resume = false, true
	c, err := dialMQTT(ctx, o, attempts)
	if err != nil {
		return nil, err
	}
	return &mqttSession{c}, nil
}

// mqttSession is a connection to a session that outlives it, unless it is closed in order.
type mqttSession struct{ *mqttConn }

// Close takes leave and has the broker forget the session.
func (s *mqttSession) Close() error {
	err := s.mqttConn.Close()
	o := s.o
	o.clean, o.resume, o.topic = true, false, ""
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if c, err := dialMQTT(ctx, o, 1); err == nil {
		_ = c.Close() // always nil
	}
	return err
}

// queue has an MQTT broker keep what is published for users who are not there: each logs in once and leaves a session with its
// subscription. A holdfast gateway does that by itself.
func (f *fleet) queue(ctx context.Context) error {
	if f.r.o.Target.MQTT == nil {
		return nil
	}
	return f.login(ctx, dialsAtOnce, func(ctx context.Context, user int) error {
		o := f.members[user].mqttOptions()
		o.clean = false
		c, err := dialMQTT(ctx, o, -1)
		if err != nil {
			return err
		}
		return c.Close()
	})
}
