package memory

import (
	"cmp"
	"context"
	"slices"
	"time"

	"penstock/registry"
)

// engineKept is how long an engine is listed after its last renewal: 10 s as live,
// then a minute as gone.
const engineKept = 70 * time.Second

// PutEngine writes e's entry, seen now.
func (r *Registry) PutEngine(_ context.Context, e registry.Engine) error {
	e.Models = slices.Clone(e.Models)
	e.Seen = time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.engines[e.Node] = e
	return nil
}

// Engines lists the entries by node name. Their Models are shared: read only.
func (r *Registry) Engines(context.Context) ([]registry.Engine, error) {
	r.mu.Lock()
	list := make([]registry.Engine, 0, len(r.engines))
	for _, e := range r.engines {
		list = append(list, e)
	}
	r.mu.Unlock()
	slices.SortFunc(list, func(a, b registry.Engine) int { return cmp.Compare(a.Node, b.Node) })
	return list, nil
}
