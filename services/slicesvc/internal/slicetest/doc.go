// Package slicetest makes Services, Pods and EndpointSlices for tests. Only tests import it.
package slicetest
