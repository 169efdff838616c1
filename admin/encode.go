package admin

import (
	"time"
	"unicode/utf8"
)

// appendString appends s as a JSON string. Bytes that are no UTF-8 become U+FFFD: names were validated on their way in, so only
// an error that repeats a stranger's bytes can have them.
func appendString[T string | []byte](dst []byte, s T) []byte {
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(string(s[i:min(len(s), i+utf8.UTFMax)]))
			if r == utf8.RuneError && n == 1 {
				dst = append(append(dst, s[from:i]...), "\uFFFD"...)
				from = i + 1
			}
			i += n
			continue
		}
		dst = appendEscape(append(dst, s[from:i]...), c)
		i++
		from = i
	}
	return append(append(dst, s[from:]...), '"')
}

func appendEscape(dst []byte, c byte) []byte {
	const hex = "0123456789abcdef"
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	}
	return append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
}

// appendTime appends Unix milliseconds as an RFC 3339 string in UTC.
func appendTime(dst []byte, ms int64) []byte {
	dst = append(dst, '"')
	dst = time.UnixMilli(ms).UTC().AppendFormat(dst, time.RFC3339Nano)
	return append(dst, '"')
}

// stamp is a time in the replies of the slow endpoints: Unix milliseconds, nil for "never" (the field is then left out).
func stamp(ms int64) *time.Time {
	if ms == 0 {
		return nil
	}
	t := time.UnixMilli(ms).UTC()
	return &t
}
