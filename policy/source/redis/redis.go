// Package redis keeps a fleet's policy in a key of the Redis that its gateways and
// agents share. Who writes it says so on a channel of the key's name; a lost message is
// made good by the next read.
package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"penstock/policy"
	"penstock/policy/source"
	"penstock/redisconn"
)

// DefaultKey is where a fleet's policy lies, and the channel on which changes are said.
const DefaultKey = "penstock:policy"

const (
	// rereadEvery is how long a lost message goes unnoticed.
	rereadEvery = 10 * time.Second
	// answerWithin bounds one answer.
	answerWithin = 2 * time.Second
)

// Config says which Redis.
type Config struct {
	Addr               string // host:port of the primary
	Username, Password string
	DB                 int
	TLS                *tls.Config // nil = plain TCP
	Key                string
}

// Validate names the field and what to set instead.
func (c Config) Validate() error {
	if _, _, err := net.SplitHostPort(c.Addr); err != nil {
		return fmt.Errorf("policy/source/redis: Addr is %q; set it to host:port", c.Addr)
	}
	if c.Key == "" {
		return fmt.Errorf("policy/source/redis: Key is empty; set it to %s", DefaultKey)
	}
	return nil
}

// Key is a policy in Redis, a source.Place. Make it with New and Close it.
type Key struct {
	cfg           Config
	client        *redisconn.Client
	link          redisconn.Link
	retry, reread time.Duration
}

// New connects to nothing yet.
func New(cfg Config) (*Key, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	o, err := redisconn.Server{Addr: cfg.Addr, Username: cfg.Username, Password: cfg.Password, DB: cfg.DB, TLS: cfg.TLS}.Options()
	if err != nil {
		return nil, fmt.Errorf("policy/source/redis: %w", err)
	}
	o.MaxRetries, o.PoolSize = 1, 2
	o.ReadBufferSize, o.WriteBufferSize = 4<<10, 4<<10 // made anew with each try of a Redis that is away
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = answerWithin, answerWithin, answerWithin
	k := &Key{cfg: cfg, retry: redisconn.Every, reread: rereadEvery}
	k.client = k.link.Client(o)
	return k, nil
}

// Close closes the connections. Watch must have ended.
func (k *Key) Close() error { return k.client.Close() }

func (k *Key) String() string { return "redis " + k.cfg.Addr + " key " + k.cfg.Key }

// Read reads the key.
func (k *Key) Read(ctx context.Context) ([]byte, error) {
	var found *goredis.IntCmd
	var text *goredis.StringCmd
	if _, err := k.client.TxPipelined(ctx, func(p goredis.Pipeliner) error {
		found = p.Exists(ctx, k.cfg.Key)
		text = p.GetRange(ctx, k.cfg.Key, 0, policy.MaxBytes) // one byte more than Parse takes
		return nil
	}); err != nil {
		return nil, err
	}
	if found.Val() == 0 {
		return nil, fmt.Errorf("%w: write one with: penstock policy push FILE", source.ErrAbsent)
	}
	return []byte(text.Val()), nil
}

// Watch listens to the key's channel.
func (k *Key) Watch(ctx context.Context, look func()) {
	for {
		k.listen(ctx, look)
		select {
		case <-time.After(k.retry):
			look()
		case <-ctx.Done():
			return
		}
	}
}

// listen looks at each message, when it begins to listen, since nothing said before is
// heard, and after each silence, until the connection fails or ctx ends.
func (k *Key) listen(ctx context.Context, look func()) {
	sub := k.client.Subscribe(ctx, k.cfg.Key)
	defer func() { _ = sub.Close() }()
	defer context.AfterFunc(ctx, func() { _ = sub.Close() })()
	for {
		_, err := sub.ReceiveTimeout(ctx, k.reread)
		var late net.Error
		if errors.As(err, &late) && late.Timeout() {
			err = sub.Ping(ctx) // idle or dead: a ping tells
		}
		if err != nil || ctx.Err() != nil {
			return
		}
		look()
	}
}

// replace writes ARGV[2] where the key holds ARGV[1], or nothing and ARGV[3] is "0", and
// tells everybody. One script: nobody comes between, and a call whose answer was lost
// may be repeated.
var replace = goredis.NewScript(`
local now = redis.call('GET', KEYS[1])
if now == ARGV[2] then return 1 end
if (now or '') ~= ARGV[1] or (now and '1' or '0') ~= ARGV[3] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
redis.call('PUBLISH', KEYS[1], ARGV[4])
return 1
`)

// Replace writes text where old lies, nil being none, and tells everybody; else it is
// source.ErrChanged.
func (k *Key) Replace(ctx context.Context, old, text []byte) error {
	there := "1"
	if old == nil {
		there = "0"
	}
	done, err := replace.Run(ctx, k.client, []string{k.cfg.Key}, old, text, there, "changed").Int()
	if err == nil && done == 0 {
		err = source.ErrChanged
	}
	return err
}
