package kube_test

import (
	"testing"

	"github.com/trivet-dev/trivet/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }
