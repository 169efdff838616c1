package codec_test

import (
	"fmt"

	"holdfast/codec"
)

// A client takes frames off what it has read and acknowledges the messages among them.
func Example() {
	read := codec.AppendPush(nil, &codec.Push{Number: 1, Attempt: 1, MessageID: []byte("m-7"), Payload: []byte("hi")})
	read = codec.AppendPush(read, &codec.Push{Number: 2, Attempt: 1, MessageID: []byte("m-8"), Payload: []byte("there")})
	read = append(read, 0x80) // the first byte of a frame that is still on its way

	var reply []byte
	for {
		f, n, err := codec.Parse(read, codec.FrameBytesDefault)
		if err != nil {
			fmt.Println("close:", err)
			return
		}
		if n == 0 {
			break // more bytes are needed
		}
		read = read[n:]
		var push codec.Push
		if err := codec.DecodePush(f, &push); err != nil {
			fmt.Println("close:", err)
			return
		}
		fmt.Printf("%s: %s\n", push.MessageID, push.Payload)
		reply = codec.AppendAckOne(reply, push.Number, codec.LevelProcessed)
	}
	fmt.Printf("% x, %d byte left\n", reply, len(read))
	// Output:
	// m-7: hi
	// m-8: there
	// 03 11 08 01 03 11 08 02, 1 byte left
}
