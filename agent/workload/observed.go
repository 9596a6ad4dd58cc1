package workload

import (
	"slices"
	"time"
)

// Container is one container that a project needs: one replica of one revision of a service.
type Container struct {
	ID      string // see [ContainerID]
	Service Service
	Replica int // from 1
	Hash    string
}

// Status is what a container's task is doing.
type Status string

// Statuses. A container whose task is gone (never started, or after a reboot) is Created.
const (
	Created Status = "created"
	Running Status = "running"
	Paused  Status = "paused"
	Exited  Status = "exited"
)

// Observed is everything of this device in a runtime: objects with our labels only.
type Observed struct {
	Containers []Observation
	Projects   []string // projects that own anything, containers or networks
}

// Observation is one observed container.
type Observation struct {
	ID         string
	Project    string
	Deployment string
	Component  string
	Service    string
	Replica    int
	Hash       string
	Generation uint64 // that it was made for
	Image      string // Image.Name
	Active     bool   // its service's address and ports lead to it
	Status     Status
	PID        uint32 // of the first process; 0 when not running
	ExitCode   uint32
	Run        string    // names this run of the container, whatever happens to the clock; "": not running, or unknown
	StartedAt  time.Time // for people: it moves when the clock is set; zero: unknown
	// Began orders the runs of all containers, whatever happens to the clock: time since the machine started. 0: not running,
	// or unknown.
	Began    time.Duration
	End      string    // names the end of the last run, another for each; "": not exited
	ExitedAt time.Time // zero: not exited
	Lack     Lack      // what the run that ended with an error lacked; "": nothing that is known, or not exited
}

// With is o after c was created for p, as a runtime observes it then. The first container of a service is its active one.
func (o Observed) With(p *Project, c Container) Observed {
	made := Observation{
		ID: c.ID, Project: p.Name, Deployment: p.Deployment, Component: p.Component, Service: c.Service.Name, Replica: c.Replica, Hash: c.Hash,
		Generation: p.Generation, Image: c.Service.Image.Name(), Status: Created, Active: true,
	}
	var others []Observation
	for _, x := range o.Containers {
		if x.ID != c.ID {
			others = append(others, x)
			made.Active = made.Active && !(x.Active && x.Project == made.Project && x.Service == made.Service)
		}
	}
	o.Containers = append(others, made)
	if !slices.Contains(o.Projects, p.Name) {
		o.Projects = append(slices.Clone(o.Projects), p.Name)
	}
	return o
}

// Stopped is o after a container was stopped, as a runtime observes it then, but for how its run has ended: end names that.
func (o Observed) Stopped(id, end string) Observed {
	o.Containers = slices.Clone(o.Containers)
	for i := range o.Containers {
		if c := &o.Containers[i]; c.ID == id {
			c.Status, c.PID, c.Run, c.StartedAt, c.Began, c.End = Exited, 0, "", time.Time{}, 0, end
		}
	}
	return o
}

// Lack is the resource that the kernel refused to a container.
type Lack string

// Lacks.
const (
	LackMemory    Lack = "memory"    // a process was killed for it
	LackProcesses Lack = "processes" // as many ran as the container's limit allows
)

// EventKind is what happened to a container.
type EventKind string

// Kinds of events. Lost says that events may have been missed: observe again.
const (
	EventExit EventKind = "exit"
	EventOOM  EventKind = "oom"
	EventLost EventKind = "lost"

	EventChanged EventKind = "changed" // created, paused, edited or deleted by another program
)

// Event is a hint to observe again; it has no state that Observed does not have.
type Event struct {
	Kind EventKind
	ID   string // container; "" for EventLost
}
