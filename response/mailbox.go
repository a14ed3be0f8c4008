package response

import (
	"encoding/binary"
	"strconv"
	"strings"
)

// StreamField is the field of a Redis stream entry that holds an encoded event.
// Readers skip entries without it.
const StreamField = "e"

// mailPart stands between a mailbox's prefix and its incarnation.
const mailPart = ":mail:"

// Mailbox is the reply address, and the Redis key of the stream, of one shard of a
// gateway's mailbox: prefix:mail:incarnation:shard. incarnation is new with every
// start of a gateway and holds no colon.
func Mailbox(prefix, incarnation string, shard int) string {
	return prefix + mailPart + incarnation + ":" + strconv.Itoa(shard)
}

// IncarnationKey is the Redis key that exists while the gateway behind reply lives,
// prefix:gw:incarnation; "" for an address that Mailbox did not make.
func IncarnationKey(reply string) string {
	i := strings.LastIndex(reply, mailPart)
	if i < 0 {
		return ""
	}
	incarnation, _, sharded := strings.Cut(reply[i+len(mailPart):], ":")
	if !sharded || incarnation == "" {
		return ""
	}
	return reply[:i] + ":gw:" + incarnation
}

// Origin returns the part of an encoded event that names its request and attempt:
// equal for all events of one attempt, different for two. It aliases event, costs
// no allocation, and is nil for bytes that are no event of a known version.
func Origin(event []byte) []byte {
	if len(event) < 2 || event[0] != Version || Kind(event[1]) < First || Kind(event[1]) >= kindEnd {
		return nil
	}
	_, n := binary.Uvarint(event[2:])
	if n <= 0 {
		return nil
	}
	r := reader{rest: event[2+n:]}
	names := r.rest
	r.text()
	r.text()
	if r.bad {
		return nil
	}
	return names[:len(names)-len(r.rest)]
}
