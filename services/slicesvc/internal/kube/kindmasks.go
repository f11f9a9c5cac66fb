package kube

import (
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/runtime"
)

// kindMasks has the field mask of every kind. Field numbers are those of Kubernetes'
// generated.proto files, where a number never changes its meaning. A mask contains at least the
// fields that the strip function of its kind keeps.
type kindMasks struct {
	pod, node, service, slice, mirroredSlice, endpoints, sliceMeta fieldMask
	podList, nodeList                                              fieldMask
	// buffers has *[]byte for filtered messages.
	buffers sync.Pool
}

func newKindMasks() *kindMasks {
	var (
		pod = fieldMask{
			// name, namespace, uid, resourceVersion, creation and deletion timestamps, grace
			// period, labels; kind, name, uid, apiVersion and controller of owners; times of
			// managed fields
			1: union(wholeFields(1, 3, 5, 6, 8, 9, 10, 11), fieldMask{13: wholeFields(1, 3, 4, 5, 6), 17: wholeFields(4)}),
			2: union(
				wholeFields(10, 16, 17), // nodeName, hostname, subdomain
				fieldMask{
					2:  {6: wholeFields(1, 3, 4), 24: nil}, // containers: ports (name, number, protocol), restartPolicy
					20: {6: wholeFields(1, 3, 4), 24: nil}, // initContainers
				}),
			// phase, conditions (type, status, lastTransitionTime), podIPs
			3: {1: nil, 2: wholeFields(1, 2, 4), 12: nil},
		}
		node = fieldMask{
			1: wholeFields(1, 5, 6, 11),       // name, uid, resourceVersion, labels
			3: {2: nil, 4: wholeFields(1, 2)}, // allocatable, conditions (type, status)
		}
		service = fieldMask{
			1: wholeFields(1, 3, 5, 6, 8, 9, 11, 12), // as of a Pod, and annotations
			2: wholeFields(1, 2, 3, 4, 13, 19, 23),   // ports, selector, clusterIP, type, publishNotReadyAddresses, ipFamilies, trafficDistribution
		}
		// all but the field sets of managed fields
		meta  = union(wholeFields(1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14), fieldMask{17: wholeFields(1, 2, 4)})
		slice = union(wholeFields(2, 3, 4), fieldMask{1: meta})
		// with the field sets, which name the writer of each annotation
		mirroredSlice = union(wholeFields(2, 3, 4), fieldMask{1: wholeFields(1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 17)})
	)
	return &kindMasks{
		buffers:   sync.Pool{New: func() any { return new([]byte) }},
		pod:       pod,
		node:      node,
		service:   service,
		slice:     slice,
		endpoints: union(wholeFields(2), fieldMask{1: meta}), // subsets
		sliceMeta: fieldMask{1: meta},

		mirroredSlice: mirroredSlice,
		podList:       fieldMask{1: nil, 2: pod},
		nodeList:      fieldMask{1: nil, 2: node},
	}
}

func wholeFields(numbers ...protowire.Number) fieldMask {
	mask := fieldMask{}
	for _, number := range numbers {
		mask[number] = nil
	}
	return mask
}

// union returns the fields of two masks without a common field.
func union(a, b fieldMask) fieldMask {
	joined := fieldMask{}
	for _, mask := range []fieldMask{a, b} {
		for number, inner := range mask {
			joined[number] = inner
		}
	}
	return joined
}

// message is implemented by the generated types of Kubernetes.
type message interface {
	runtime.Object
	Reset()
	Unmarshal([]byte) error
}

type namedMessage interface {
	message
	GetName() string
}

// decodeNamed returns nil for an object without a name. The bookmark of a watch has none, and its
// annotations must reach the full decoder.
func (m *kindMasks) decodeNamed(object []byte, mask fieldMask, into namedMessage) runtime.Object {
	if !m.decode(object, mask, into) || into.GetName() == "" {
		return nil
	}
	return into
}

// decode resets into, decodes the masked fields of an object into it, and returns whether it could.
func (m *kindMasks) decode(object []byte, mask fieldMask, into message) bool {
	return m.filtered(object, mask, func(used []byte) bool {
		into.Reset()
		return into.Unmarshal(used) == nil
	})
}

// maxPooledBuffer is larger than a Pod or a Node. The buffer of a whole list is not pooled.
const maxPooledBuffer = 16 << 10

// filtered calls use with the masked fields of an object. use must not keep its argument. filtered
// returns whether the object could be filtered and use returned true.
func (m *kindMasks) filtered(object []byte, mask fieldMask, use func(used []byte) bool) bool {
	buffer, _ := m.buffers.Get().(*[]byte)
	used, err := mask.filter((*buffer)[:0], object)
	ok := err == nil && use(used)
	if cap(used) <= maxPooledBuffer {
		*buffer = used
		m.buffers.Put(buffer)
	}
	return ok
}
