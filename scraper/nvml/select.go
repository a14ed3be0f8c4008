package nvml

import (
	"slices"
	"strconv"
	"strings"

	"penstock/scraper/nvml/wire"
)

// selection is which GPUs the engine uses: indices or (beginnings of) UUIDs, as in
// CUDA_VISIBLE_DEVICES. all: every one there is.
type selection struct {
	all  bool
	want []string
}

// visible reads CUDA_VISIBLE_DEVICES. As CUDA does, it stops at the first entry that
// names nothing: "" and "-1" are no GPU at all.
func visible(value string, set bool) selection {
	if !set {
		return selection{all: true}
	}
	var s selection
	for name := range strings.SplitSeq(value, ",") {
		name = strings.TrimSpace(name)
		if !validName(name) {
			break
		}
		s.want = append(s.want, name)
	}
	return s
}

func validName(name string) bool {
	if strings.HasPrefix(name, "GPU-") || strings.HasPrefix(name, "MIG-") {
		return len(name) > len("GPU-")
	}
	i, err := strconv.Atoi(name)
	return err == nil && i >= 0 && i < wire.MaxGPUs
}

// has reports whether the engine uses g, or a part of it.
func (s selection) has(g *wire.GPU) bool {
	if s.all {
		return true
	}
	return slices.ContainsFunc(s.want, func(name string) bool {
		return name == strconv.Itoa(g.I) || strings.HasPrefix(name, "GPU-") && strings.HasPrefix(g.ID, name)
	}) || slices.ContainsFunc(g.Parts, s.names)
}

// names reports whether p is named itself.
func (s selection) names(p wire.Part) bool {
	return slices.ContainsFunc(s.want, func(name string) bool {
		return strings.HasPrefix(name, "MIG-") && strings.HasPrefix(p.ID, name)
	})
}

// parts is what of a GPU in MIG mode belongs to the engine: the parts that are named,
// else all.
func (s selection) parts(g *wire.GPU) []wire.Part {
	var named []wire.Part
	for _, p := range g.Parts {
		if s.names(p) {
			named = append(named, p)
		}
	}
	if len(named) > 0 {
		return named
	}
	return g.Parts
}
