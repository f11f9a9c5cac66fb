// Package slicereader reads EndpointSlices as simple clients do. Only tests import it.
//
// A Reader keeps one set of endpoints for a Service and applies each event of a slice to it alone.
// The endpoints that the slice had before leave the set, even if another slice has them, and those
// that it has now enter the set. Linkerd reads slices in this way. Cilium does the same for all
// events of half a second at once, so that it loses an endpoint that moves only if the events of
// both slices are in different batches. kube-proxy looks at all slices of a Service and is not
// modelled here.
package slicereader
