package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// As much of MQTT 3.1.1 as a load at QoS 0 and 1 needs. A packet is
//
//	| kind and flags 1 B | length of the rest, 1-4 B of 7 bits each | rest |
//
// and a string is its length in two bytes and the bytes.

// mqttKind is the kind of a packet, as it travels in the upper half of the first byte.
type mqttKind byte

const (
	mqttConnect    mqttKind = 1  // c>s  "MQTT", 4, flags, keepalive s, client id, [user], [password]
	mqttConnack    mqttKind = 2  // s>c  session present, return code
	mqttPublish    mqttKind = 3  // both topic, packet id (QoS 1), payload: the rest
	mqttPuback     mqttKind = 4  // both packet id
	mqttSubscribe  mqttKind = 8  // c>s  packet id, topic filter, QoS
	mqttSuback     mqttKind = 9  // s>c  packet id, QoS granted or 0x80
	mqttPingreq    mqttKind = 12 // c>s
	mqttPingresp   mqttKind = 13 // s>c
	mqttDisconnect mqttKind = 14 // c>s
)

const (
	mqttVersion = 4 // the protocol level of 3.1.1

	mqttCleanSession = 1 << 1 // flags of CONNECT
	mqttHasPassword  = 1 << 6
	mqttHasUser      = 1 << 7

	mqttQoSShift       = 1 // flags of PUBLISH
	mqttQoSMask        = 3
	mqttSubscribeFlags = 2 // those flags are fixed
	mqttRefused        = 0x80

	mqttPacketBytesMax = 1 << 20 // larger ones are not ours
)

var errMQTTShort = errors.New("a packet is too short for what it should hold")

// mqttPacket is a packet with its rest still encoded, borrowed from the bytes given to parseMQTT.
type mqttPacket struct {
	kind  mqttKind
	flags byte
	rest  []byte
}

// parseMQTT takes the first packet of buf and tells its length; n is 0 while it is not complete.
func parseMQTT(buf []byte) (p mqttPacket, n int, err error) {
	length, shift := 0, 0
	for i := 1; i < len(buf); i++ {
		length |= int(buf[i]&0x7f) << shift
		shift += 7
		if buf[i] < 0x80 {
			if length > mqttPacketBytesMax {
				return p, 0, fmt.Errorf("a packet of %d bytes", length)
			}
			if i+1+length > len(buf) {
				return p, 0, nil
			}
			return mqttPacket{kind: mqttKind(buf[0] >> 4), flags: buf[0] & 0x0f, rest: buf[i+1 : i+1+length]}, i + 1 + length, nil
		}
		if shift == 28 {
			return p, 0, errors.New("a packet's length has more than four bytes")
		}
	}
	return p, 0, nil
}

// appendMQTTHead appends kind, flags and length.
func appendMQTTHead(dst []byte, kind mqttKind, flags byte, length int) []byte {
	dst = append(dst, byte(kind)<<4|flags)
	for length > 0x7f {
		dst = append(dst, byte(length)|0x80)
		length >>= 7
	}
	return append(dst, byte(length))
}

func appendMQTTString(dst []byte, s string) []byte {
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(s)))
	return append(dst, s...)
}

// mqttLogin are the fields of a CONNECT.
type mqttLogin struct {
	clientID       string
	user, password string // empty: not sent
	clean          bool
	keepaliveS     uint16
}

func encodeMQTTConnect(o *mqttLogin) []byte {
	const name = "MQTT"
	var flags byte
	length := 2 + len(name) + 1 + 1 + 2 + 2 + len(o.clientID)
	if o.clean {
		flags |= mqttCleanSession
	}
	if o.user != "" {
		flags |= mqttHasUser
		length += 2 + len(o.user)
	}
	if o.password != "" {
		flags |= mqttHasPassword
		length += 2 + len(o.password)
	}
	dst := appendMQTTHead(nil, mqttConnect, 0, length)
	dst = append(appendMQTTString(dst, name), mqttVersion, flags)
	dst = binary.BigEndian.AppendUint16(dst, o.keepaliveS)
	dst = appendMQTTString(dst, o.clientID)
	if o.user != "" {
		dst = appendMQTTString(dst, o.user)
	}
	if o.password != "" {
		dst = appendMQTTString(dst, o.password)
	}
	return dst
}

func appendMQTTSubscribe(dst []byte, id uint16, topic string, qos byte) []byte {
	dst = appendMQTTHead(dst, mqttSubscribe, mqttSubscribeFlags, 2+2+len(topic)+1)
	dst = binary.BigEndian.AppendUint16(dst, id)
	return append(appendMQTTString(dst, topic), qos)
}

// appendMQTTPublish appends a message; id 0 is QoS 0, which has none.
func appendMQTTPublish(dst []byte, id uint16, topic string, payload []byte) []byte {
	length := 2 + len(topic) + len(payload)
	if id == 0 {
		dst = appendMQTTString(appendMQTTHead(dst, mqttPublish, 0, length), topic)
		return append(dst, payload...)
	}
	dst = appendMQTTString(appendMQTTHead(dst, mqttPublish, 1<<mqttQoSShift, length+2), topic)
	dst = binary.BigEndian.AppendUint16(dst, id)
	return append(dst, payload...)
}

func appendMQTTPuback(dst []byte, id uint16) []byte {
	return binary.BigEndian.AppendUint16(appendMQTTHead(dst, mqttPuback, 0, 2), id)
}

// message decodes a PUBLISH. id is 0 for QoS 0.
func (p mqttPacket) message() (id uint16, topic, payload []byte, err error) {
	b := p.rest
	if len(b) < 2 || len(b) < 2+int(binary.BigEndian.Uint16(b)) {
		return 0, nil, nil, errMQTTShort
	}
	n := 2 + int(binary.BigEndian.Uint16(b))
	topic, b = b[2:n], b[n:]
	switch qos := p.flags >> mqttQoSShift & mqttQoSMask; {
	case qos == 0:
		return 0, topic, b, nil
	case qos > 1:
		return 0, nil, nil, fmt.Errorf("a message with QoS %d, which nobody asked for", qos)
	case len(b) < 2:
		return 0, nil, nil, errMQTTShort
	}
	if id = binary.BigEndian.Uint16(b); id == 0 {
		return 0, nil, nil, errors.New("a message with packet id 0")
	}
	return id, topic, b[2:], nil
}

// number decodes the packet id of a PUBACK.
func (p mqttPacket) number() (id uint16, err error) {
	if len(p.rest) < 2 {
		return 0, errMQTTShort
	}
	return binary.BigEndian.Uint16(p.rest), nil
}

// connected reports why a CONNACK is no welcome; nil: it is one. session: to a session that the broker should have.
func (p mqttPacket) connected(session bool) error {
	if len(p.rest) < 2 {
		return errMQTTShort
	}
	switch code := p.rest[1]; code {
	case 0:
		if session && p.rest[0] != 1 {
			return errors.New("the broker has not kept the session")
		}
		return nil
	case 1:
		return errors.New("refused: it does not speak MQTT 3.1.1")
	case 2:
		return errors.New("refused: it does not take the client id")
	case 3:
		return errors.New("refused: it is unavailable")
	case 4, 5:
		return errors.New("refused: user or password (mqtt://user:password@host:port)")
	default:
		return fmt.Errorf("refused: return code %d", code)
	}
}

// subscribed reports why a SUBACK is no consent; nil: it is one.
func (p mqttPacket) subscribed() error {
	if len(p.rest) < 3 {
		return errMQTTShort
	}
	if p.rest[2] != 1 {
		return fmt.Errorf("the subscription at QoS 1 was answered with %#x", p.rest[2])
	}
	return nil
}
