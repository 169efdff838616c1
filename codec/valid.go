package codec

import "unicode/utf8"

// ValidUser reports whether b is a user name: 1 to UserBytesMax bytes of UTF-8 without control characters.
func ValidUser(b []byte) bool { return len(b) > 0 && validText(b, UserBytesMax) }

// ValidDevice reports whether b is a device name: 1 to DeviceBytesMax bytes of UTF-8 without control characters.
func ValidDevice(b []byte) bool { return len(b) > 0 && validText(b, DeviceBytesMax) }

// ValidMessageID reports whether b is a message id: 1 to MessageIDBytesMax bytes of UTF-8 without control characters.
func ValidMessageID(b []byte) bool { return len(b) > 0 && validText(b, MessageIDBytesMax) }

// ValidConversation reports whether b is a conversation id or empty (none).
func ValidConversation(b []byte) bool { return validText(b, ConversationBytesMax) }

// ValidType reports whether b is a message type or empty (none).
func ValidType(b []byte) bool { return validText(b, TypeBytesMax) }

// ValidNode reports whether b is a node name or empty (none).
func ValidNode(b []byte) bool { return validText(b, NodeBytesMax) }

// validText checks a string that people and logs will see: control characters (below 0x20, and 0x7f) would let a client forge lines. [P-STR-2]
func validText(b []byte, bytesMax int) bool {
	if len(b) > bytesMax {
		return false
	}
	ascii := true
	for _, c := range b {
		if c < 0x20 || c == 0x7f {
			return false
		}
		ascii = ascii && c < 0x80
	}
	return ascii || utf8.Valid(b)
}
