#!/bin/busybox sh
# What recorded `cgroup2`: the init of a virtual machine with nothing but busybox (static) in its initial file system:
#   (find . | cpio -o -H newc | gzip) > initrd.gz       # ./init (this file), ./bin/busybox, empty ./proc ./sys ./dev ./tmp
#   qemu-system-x86_64 -m 512 -nographic -no-reboot -kernel vmlinuz-6.1 -initrd initrd.gz -append "console=ttyS0 psi=1 quiet"
# Each `=====FILE name` on the console begins one recorded file.
B=/bin/busybox
$B mount -t proc proc /proc; $B mount -t sysfs sys /sys; $B mount -t devtmpfs dev /dev; $B mount -t tmpfs tmpfs /tmp
$B mount -t cgroup2 none /sys/fs/cgroup
cd /sys/fs/cgroup
echo "+cpu +memory" > cgroup.subtree_control
$B mkdir pod; echo "+cpu +memory" > pod/cgroup.subtree_control; $B mkdir pod/box
echo "150000 100000" > pod/cpu.max; echo "50000 100000" > pod/box/cpu.max
echo 67108864 > pod/box/memory.max; echo max > pod/memory.max
# one process that burns a core, one that grows until it is killed, one that holds 16 MiB
( echo 0 > pod/box/cgroup.procs; while :; do :; done ) &
( echo 0 > pod/box/cgroup.procs; exec $B tail /dev/zero ) 
( echo 0 > pod/box/cgroup.procs; $B dd if=/dev/zero of=/tmp/held bs=1M count=16 2>/dev/null; $B cat /tmp/held >/dev/null; 
  $B cat /proc/self/cgroup > /tmp/self.cgroup; $B cat /proc/self/mountinfo > /tmp/self.mountinfo )
$B sleep 3
echo "=====BEGIN"
for f in /tmp/self.cgroup /tmp/self.mountinfo; do echo "=====FILE $f"; $B cat $f; done
for d in . pod pod/box; do for f in $d/cpu.max $d/cpu.stat $d/cpu.pressure $d/memory.max $d/memory.current $d/memory.stat $d/memory.events $d/memory.pressure $d/io.pressure $d/cgroup.controllers; do [ -f $f ] && { echo "=====FILE sys/fs/cgroup/$f"; $B cat $f; }; done; done
for f in /proc/pressure/cpu /proc/pressure/memory /proc/pressure/io /proc/version; do echo "=====FILE $f"; $B cat $f; done
echo "=====END"
$B poweroff -f
