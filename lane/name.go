package lane

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"strconv"
	"strings"
)

// MaxName is the longest name a broker takes, in bytes (RocketMQ's maxLiteTopicSize).
const MaxName = 64

// MaxWidth bounds a lane's shards, so that names stay within MaxName.
const MaxWidth = 100_000

// readable is how much of tier and model a name shows; it is for people who look
// at a broker, nothing is read from it.
const readable = 24

// Entry is a lane of a fleet's directory.
type Entry struct {
	Key   Key
	Width int // shards 0..Width-1; each is a LiteTopic called Name(secret, Key, shard)

	// Waiting: requests waited in it when the directory was last read, at most 2 s ago.
	// False says nothing of a lane that was announced since, and of some of very many.
	Waiting bool
}

var alphabet = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// Name is what a broker calls one shard of a lane: [a-z0-9_-], at most MaxName
// bytes, the same in every process that has the secret. Two keys have two names as
// far as 128 bits of HMAC-SHA256 tell them apart; without the secret nobody finds
// the tenant behind a name by trying. shard counts from 0 to MaxWidth-1; outside it
// is taken as the nearer end.
func Name(secret []byte, k Key, shard int) string {
	mac := hmac.New(sha256.New, secret)
	for _, part := range [...]string{k.Tier, k.Type, k.Model, k.Pool, k.Tenant} {
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		mac.Write(length[:])
		mac.Write([]byte(part))
	}
	var sum [sha256.Size]byte
	var b strings.Builder
	b.Grow(MaxName)
	b.WriteString(plain(k.Tier, readable/3))
	b.WriteByte('-')
	b.WriteString(plain(k.Model, readable-readable/3))
	b.WriteByte('-')
	b.WriteString(alphabet.EncodeToString(mac.Sum(sum[:0])[:16])) // 26 characters
	b.WriteByte('-')
	b.WriteString(strconv.Itoa(min(max(shard, 0), MaxWidth-1)))
	return b.String()
}

// plain is the first most bytes of s in the broker's alphabet.
func plain(s string, most int) string {
	out := make([]byte, 0, most)
	for i := 0; i < len(s) && len(out) < most; i++ {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
			out = append(out, c)
		case 'A' <= c && c <= 'Z':
			out = append(out, c|0x20)
		default:
			out = append(out, '_')
		}
	}
	return string(out)
}
