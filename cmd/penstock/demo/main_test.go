package demo

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// The RocketMQ client library starts it when it is linked, and never stops it.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"))
}
