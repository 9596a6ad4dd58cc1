package admission

import (
	"fmt"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// ownerOf names a service for another application's release engineer.
func ownerOf(p *workload.Project, service string) string {
	return fmt.Sprintf("service %s of component %s of deployment %s", service, p.Component, p.Deployment)
}

// lines finds serial ports that two services want: each would get half of the bytes.
func (c *check) lines(projects []*workload.Project) {
	type claim struct {
		p       *workload.Project
		service string
	}
	first := map[string]claim{}
	for _, p := range projects {
		for _, s := range p.Services {
			for _, d := range s.Devices {
				if !d.SerialPort() {
					continue
				}
				before, ok := first[d.HostPath]
				if !ok {
					first[d.HostPath] = claim{p, s.Name}
					continue
				}
				if before.p == p && before.service == s.Name {
					continue
				}
				c.conflict(p, s.Name, fmt.Sprintf("devices[%d]", d.At), fault.ErrConflict, "a serial port serves one reader: let one service read it and pass on what it reads",
					"%s is also wanted by %s", d.HostPath, ownerOf(before.p, before.service))
			}
		}
	}
}

// memory compares the reservations with the memory of the machine. Limits may add up to more.
func (c *check) memory(projects []*workload.Project) {
	if c.m.Memory == 0 {
		return
	}
	var sum int64
	for _, p := range projects {
		for i := range p.Services {
			s := &p.Services[i]
			asked := s.Resources.MemoryReservation * int64(s.Count())
			if asked == 0 {
				continue
			}
			if sum += asked; sum > c.m.Memory {
				c.conflict(p, s.Name, "mem_reservation", fault.ErrUnfit, "reserve less, or move an application to another device",
					"with this service %d MiB of memory are reserved, this device has %d MiB", sum>>20, c.m.Memory>>20)
			}
		}
	}
}
