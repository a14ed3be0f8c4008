package redis

import (
	"testing"

	"penstock/registry/registrytest"
)

func TestLookup(t *testing.T) { registrytest.Lookup(t, on(fake)) }
