package engine

// pool is the free KV blocks in the order in which they are used again. Blocks of a
// prompt that are full keep what they hold while they are free, so that a prompt that
// begins alike finds them: the block longest free is used, and forgotten, first.
type pool struct {
	free   int // blocks
	unit   int // blocks of a part
	parts  map[uint64]*part
	oldest *span
	newest *span
	spare  *span // of plain blocks, for use again
}

// part is Config.PrefixTokens tokens of a prompt under one id, all in the cache.
type part struct {
	id   uint64
	refs int   // sequences that run on it
	span *span // its place among the free blocks; nil while refs > 0
}

// span is free blocks next to each other in the order of use: one part, or blocks
// that hold nothing.
type span struct {
	blocks       int
	part         *part
	older, newer *span
}

func newPool(cfg *Config) *pool {
	p := &pool{unit: cfg.PrefixTokens / cfg.BlockSize, parts: map[uint64]*part{}}
	p.put(cfg.Blocks-1, nil)
	return p
}

// put frees blocks; those of a part keep it.
func (p *pool) put(blocks int, of *part) {
	if blocks == 0 {
		return
	}
	p.free += blocks
	if of == nil && p.newest != nil && p.newest.part == nil {
		p.newest.blocks += blocks
		return
	}
	s := p.spare
	if s == nil {
		s = &span{}
	} else {
		p.spare = s.newer
	}
	*s = span{blocks: blocks, part: of, older: p.newest}
	if p.newest == nil {
		p.oldest = s
	} else {
		p.newest.newer = s
	}
	p.newest = s
	if of != nil {
		of.span = s
	}
}

// take uses blocks, the longest free first; there are so many.
func (p *pool) take(blocks int) {
	p.free -= blocks
	for blocks > 0 {
		s := p.oldest
		if s.part != nil {
			delete(p.parts, s.part.id)
			s.part = nil
		}
		n := min(blocks, s.blocks)
		blocks -= n
		if s.blocks -= n; s.blocks == 0 {
			p.unlink(s)
		}
	}
}

func (p *pool) unlink(s *span) {
	if s.older == nil {
		p.oldest = s.newer
	} else {
		s.older.newer = s.newer
	}
	if s.newer == nil {
		p.newest = s.older
	} else {
		s.newer.older = s.older
	}
	*s = span{newer: p.spare}
	p.spare = s
}

// hold keeps a part for one more sequence.
func (p *pool) hold(t *part) {
	if t.refs++; t.span != nil {
		p.free -= p.unit
		p.unlink(t.span)
		t.span = nil
	}
}

func (p *pool) release(t *part) {
	if t.refs--; t.refs == 0 {
		p.put(p.unit, t)
	}
}

// find is how many parts of a prompt the cache has, from its start, and how many of
// them some running sequence holds. Never the whole: the last token gives the output.
func (e *Engine) find(s *sequence) (parts, held int) {
	if e.cfg.PrefixTokens == 0 {
		return 0, 0
	}
	for most := e.nameable(s); parts < most; parts++ {
		t := e.pool.parts[s.Prefix[parts]]
		if t == nil || (parts+1)*e.cfg.PrefixTokens >= s.Prompt+s.out {
			break
		}
		if t.refs > 0 {
			held++
		}
	}
	return parts, held
}

// nameable is how many full parts of a prompt have an id.
func (e *Engine) nameable(s *sequence) int { return min(len(s.Prefix), s.Prompt/e.cfg.PrefixTokens) }

// reuse begins a sequence with the parts that were found.
func (e *Engine) reuse(s *sequence, parts int) {
	for _, id := range s.Prefix[:parts] {
		t := e.pool.parts[id]
		e.pool.hold(t)
		s.parts = append(s.parts, t)
	}
	s.blocks += parts * e.pool.unit
	s.named = parts
	s.computed = parts * e.cfg.PrefixTokens
	e.held += s.computed
	if s.out == 0 && s.preempted == 0 {
		e.stats.PrefixQueries += uint64(s.Prompt)
		e.stats.PrefixHits += uint64(s.computed)
	} else {
		e.stats.TokensRecomputed -= uint64(s.computed)
	}
}

// name lets others find the parts that the running step fills: like vLLM, which
// computes all of a step's tokens layer by layer, in this very step already. One whose
// id is taken stays the sequence's own.
func (e *Engine) name(s *sequence) {
	if len(s.Prefix) == 0 || e.cfg.PrefixTokens == 0 {
		return
	}
	full := min(e.nameable(s), (s.computed+s.scheduled)/e.cfg.PrefixTokens)
	for ; s.named < full; s.named++ {
		id := s.Prefix[s.named]
		if e.pool.parts[id] == nil {
			t := &part{id: id, refs: 1}
			e.pool.parts[id] = t
			s.parts = append(s.parts, t)
		}
	}
}
