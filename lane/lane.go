// Package lane names the queues that requests wait in, outside the engine: one
// per tier, type, model, pool and tenant.
package lane

import "strings"

// Key identifies a lane. It is comparable and used as a map key. An empty Pool
// means any hardware class.
type Key struct {
	Tier   string // service class, "default" until tiers are configured
	Type   string // "chat", "completion", "embedding"
	Model  string // as the engine serves it
	Pool   string // hardware class an agent declares with --pool; "" = any
	Tenant string // who pays; never a metric label
}

// String is for logs and error texts: the five parts, "/"-separated.
func (k Key) String() string {
	return strings.Join([]string{k.Tier, k.Type, k.Model, k.Pool, k.Tenant}, "/")
}
