package kube

import (
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
)

// trees are the wanted fields of every kind. They are numbered as in Kubernetes'
// generated.proto files, where a number never changes its meaning, and name at
// least what the strip function of their kind keeps.
type trees struct {
	pod, node, service, slice, sliceMeta fields
	podList, nodeList                    fields
	// room has buffers to filter messages in, as *[]byte.
	room sync.Pool
}

func newTrees() *trees {
	var (
		pod = fields{
			// name, namespace, uid, resourceVersion, the three of the deletion and
			// creation, labels; of owners kind, name, uid, apiVersion, controller; of
			// those who wrote it when they did
			1: merge(all(1, 3, 5, 6, 8, 9, 10, 11), fields{13: all(1, 3, 4, 5, 6), 17: all(4)}),
			2: merge(
				all(10, 16, 17), // nodeName, hostname, subdomain
				fields{
					2:  {6: all(1, 3, 4), 24: nil}, // containers: ports (name, number, protocol), restartPolicy
					20: {6: all(1, 3, 4), 24: nil}, // initContainers
				}),
			// phase, conditions (type, status, lastTransitionTime), podIPs
			3: {1: nil, 2: all(1, 2, 4), 12: nil},
		}
		node = fields{
			1: all(1, 5, 6, 11),       // name, uid, resourceVersion, labels
			3: {2: nil, 4: all(1, 2)}, // allocatable, conditions (type, status)
		}
		service = fields{
			1: all(1, 3, 5, 6, 8, 9, 11, 12), // as a pod's, and annotations
			2: all(1, 2, 3, 4, 13, 19, 23),   // ports, selector, clusterIP, type, publishNotReadyAddresses, ipFamilies, trafficDistribution
		}
		// all but the list of fields that each manager has set
		meta  = merge(all(1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14), fields{17: all(1, 2, 4)})
		slice = merge(all(2, 3, 4), fields{1: meta})
	)
	return &trees{
		room:      sync.Pool{New: func() any { return new([]byte) }},
		pod:       pod,
		node:      node,
		service:   service,
		slice:     slice,
		sliceMeta: fields{1: meta},
		podList:   fields{1: nil, 2: pod},
		nodeList:  fields{1: nil, 2: node},
	}
}

// all wants the whole of these fields.
func all(numbers ...protowire.Number) fields {
	wanted := fields{}
	for _, number := range numbers {
		wanted[number] = nil
	}
	return wanted
}

// merge wants what either of two wants, which have no field in common.
func merge(a, b fields) fields {
	wanted := fields{}
	for _, some := range []fields{a, b} {
		for number, inner := range some {
			wanted[number] = inner
		}
	}
	return wanted
}
