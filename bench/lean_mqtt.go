package bench

import (
	"fmt"
	"time"
)

// leanMQTT is a lean connection's side of MQTT: it subscribes to the topic of its name, which is what a receiver of a broker is, and is
// in when the broker has agreed.
type leanMQTT struct {
	name      func(user int) string
	keepalive time.Duration // 0: as other MQTT connections
	login     *MQTTLogin
}

// leanTo are the lean connections for what o and token say.
func leanTo(login *MQTTLogin, name func(user int) string, o leanHoldfast) leanSpeech {
	if login == nil {
		o.name = name
		return o
	}
	return leanMQTT{name: name, keepalive: o.keepalive, login: login}
}

// hello implements leanSpeech. CONNECT and SUBSCRIBE leave together.
func (m leanMQTT) hello(user int) ([]byte, error) {
	name, keepalive := m.name(user), m.keepalive
	if keepalive <= 0 {
		keepalive = mqttKeepalive
	}
	b := encodeMQTTConnect(&mqttLogin{
		clientID: name, user: m.login.User, password: m.login.Password, clean: true, keepaliveS: uint16(min(keepalive/time.Second, 1<<16-1)),
	})
	return appendMQTTSubscribe(b, 1, name, 1), nil
}

// ping implements leanSpeech.
func (leanMQTT) ping() []byte { return appendMQTTHead(nil, mqttPingreq, 0, 0) }

// heard implements leanSpeech.
func (leanMQTT) heard(b []byte) (n int, in bool, err error) {
	p, n, err := parseMQTT(b)
	if err != nil || n == 0 {
		return 0, false, err
	}
	switch p.kind {
	case mqttConnack:
		err = p.connected(false)
	case mqttSuback:
		in, err = true, p.subscribed()
	case mqttPingresp, mqttPublish:
	default:
		err = fmt.Errorf("a packet of kind %d is not sent by brokers", p.kind)
	}
	if err != nil {
		return 0, false, err
	}
	return n, in, nil
}
