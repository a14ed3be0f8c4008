package script

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"penstock/lane"
	"penstock/quota"
	"penstock/registry"
)

// MaxKey bounds the text of a lane's key in bytes: the gateway takes tenant names from
// API keys and models from the directory, both far shorter.
const MaxKey = 4096

// keyText is a lane.Key in the directory. Bytes that are no UTF-8 would not survive
// JSON, so tenants are []byte.
type keyText struct {
	Tier, Type, Model, Pool string
	Tenant                  []byte
}

// Lane is a lane's id in Redis's keys, 22 characters whatever its key holds, and the
// key's text: an entry of the directory is "<width> <key>".
func Lane(k lane.Key) (id, key string, err error) {
	h := sha256.New()
	size := 0
	for _, part := range [...]string{k.Tier, k.Type, k.Model, k.Pool, k.Tenant} {
		size += len(part)
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		h.Write(length[:])
		h.Write([]byte(part))
	}
	if size > MaxKey {
		return "", "", fmt.Errorf("registry/redis: a lane's key has %d bytes, at most %d", size, MaxKey)
	}
	text, err := json.Marshal(keyText{k.Tier, k.Type, k.Model, k.Pool, []byte(k.Tenant)})
	if err != nil {
		return "", "", fmt.Errorf("registry/redis: lane entry: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:16]), string(text), nil
}

// ParseLane reads an entry of the directory.
func ParseLane(entry string) (registry.Lane, error) {
	width, text, _ := strings.Cut(entry, " ")
	var k keyText
	err := json.Unmarshal([]byte(text), &k)
	n, bad := strconv.Atoi(width)
	if err = errors.Join(err, bad); err != nil {
		return registry.Lane{}, fmt.Errorf("registry/redis: lane entry %.200q: %w", entry, err)
	}
	return registry.Lane{Key: lane.Key{Tier: k.Tier, Type: k.Type, Model: k.Model, Pool: k.Pool, Tenant: string(k.Tenant)}, Width: n}, nil
}

// Limits adds limits to a call of open, as lua/quota.lua reads them.
func Limits(args []any, limits []quota.Limit) []any {
	for i := range limits {
		l := &limits[i]
		unit, kind, slice := "t", "l", ""
		if l.Unit == quota.Requests {
			unit = "r"
		}
		if l.Window {
			kind = "w"
		}
		if l.Own > 0 {
			slice = bucketID(l, "slice", l.Slice)
		}
		args = append(args, bucketID(l, l.Scope, l.Bucket), unit, l.Amount, l.Per.Milliseconds(), kind, l.Own, slice)
	}
	return args
}

// bucketID is 22 characters whatever the name holds. Limits that count otherwise have
// other buckets, as in package quota.
func bucketID(l *quota.Limit, scope, name string) string {
	text := append(make([]byte, 0, 128), l.Unit.String()...)
	text = append(append(append(text, 0), scope...), 0)
	if l.Window {
		text = strconv.AppendInt(text, l.Per.Milliseconds(), 10)
	}
	sum := sha256.Sum256(append(append(text, 0), name...))
	return base64.RawURLEncoding.EncodeToString(sum[:16])
}
