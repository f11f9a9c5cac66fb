// Package slicetest makes Services, pods and slices for tests, alone and as
// random clusters, and carries plans out in memory. Only tests import it.
package slicetest
