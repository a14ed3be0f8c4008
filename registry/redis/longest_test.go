package redis

import (
	"testing"

	"penstock/registry/registrytest"
)

func TestLongest(t *testing.T) { registrytest.Longest(t, on(fake), DefaultConfig().Width) }
