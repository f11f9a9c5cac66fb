// Package slicetest makes Services, Pods and EndpointSlices for tests, single ones and random
// clusters, and applies plans in memory. Only tests import it.
package slicetest
