# Rehearse on a machine with two GPUs and no package index. Wants /opt/kenv (PyTorch 2.15.0, see env.sh
# there) and .whl (wheels and src.tgz). $OUT gets one tar with everything.
set -x
mkdir -p /tmp/rehearse/repo /tmp/rehearse/site /tmp/rehearse/long
export XDG_CACHE_HOME=/tmp/rehearse/c XDG_CONFIG_HOME=/tmp/rehearse/k XDG_STATE_HOME=/tmp/rehearse/s PYTHONUNBUFFERED=1
tar -xzf .whl/src.tgz -C /tmp/rehearse/repo
${OWN:-python3} -m pip install -q --no-index --no-deps --no-compile --target /tmp/rehearse/site .whl/*.whl
HERE=/tmp/rehearse/repo/docs/evidence/gpu/rehearse
PLAN=${PLAN:-$HERE/plan.toml}
OWN=${OWN:-$(command -v python3)}
cat >/tmp/rehearse/new <<X
#!/bin/bash
given=\$PYTHONPATH
. ${KENV:-/opt/kenv}/env.sh
export PYTHONPATH=\$PYTHONPATH:\$given
exec ${STACK_PYTHON:-$OWN} "\$@"
X
cat >/tmp/rehearse/old <<X
#!/bin/bash
exec ${STACK_PYTHON:-$OWN} "\$@"
X
chmod +x /tmp/rehearse/new /tmp/rehearse/old
ks() { PYTHONPATH=/tmp/rehearse/site:/tmp/rehearse/repo/src $OWN -c "from keepstep.cli.main import main; main()" "$@"; }
drill() { PYTHONPATH=/tmp/rehearse/site:/tmp/rehearse/repo/src timeout -k 5 240 $OWN $HERE/drill.py "$@"; }
export PATH=/tmp/rehearse/site/bin:$PATH
nvidia-smi --query-gpu=name,driver_version --format=csv; nvidia-smi topo -m; uname -r; nproc
begun=$(date +%s)
ks stack create new --python /tmp/rehearse/new &
ks stack create old --python /tmp/rehearse/old
wait
date
R=/tmp/rehearse/rehearsal
# One GPU: ranks share it, each a host of its own to NCCL.
if [ "$(nvidia-smi -L | wc -l)" = 1 ]; then
  sed -i "s/^gpus = 2/gpus = 1/" $PLAN
  sed -i "2i export NCCL_HOSTID=rank-\$RANK NCCL_SOCKET_IFNAME=lo" /tmp/rehearse/new /tmp/rehearse/old
fi
ks rehearse $PLAN --out $R --minutes 0 | tail -3
date
start() { # seconds to wait before, name
  sleep $1
  drill $PLAN $R $2 >/tmp/rehearse/drill-$(echo $2 | tr / _).txt 2>&1
}
long() { # seconds to wait before, name: beside the rehearsal, with more time for an abort
  at=/tmp/rehearse/long/$(echo $2 | tr / _)
  mkdir -p $at
  sleep $1
  drill $PLAN $at $2 100 >$at.txt 2>&1
}
drill $PLAN $R >/tmp/rehearse/names.txt
# Ranks that hang keep their GPU busy: what is not to be disturbed begins with the others or late.
for name in $(grep -E "${DRILLS:-.}" /tmp/rehearse/names.txt); do
  case $name in
    hang/2.15/*) start 0 $name & ;;
    hang/*) start 15 $name & ;;
    rollback/*) start 25 $name & ;;
    *) start 0 $name & ;;
  esac
done
for name in ${LONG-hang/2.15/nccl-legacy}; do long 15 $name & done
wait
date
tail -n 3 /tmp/rehearse/drill-*.txt /tmp/rehearse/long/*.txt 2>/dev/null
left=$((${WORK_S:-480} - $(date +%s) + begun))
sitting() { # seconds after which it is ended, seconds after which nothing new is begun
  PYTHONPATH=/tmp/rehearse/site:/tmp/rehearse/repo/src timeout -s TERM -k 20 $1 $OWN \
    -c "from keepstep.cli.main import main; main()" rehearse $PLAN --out $R \
    --minutes $($OWN -c "print(max(0.0, $2 / 60))") \
    >/tmp/rehearse/report.txt 2>>/tmp/rehearse/progress.txt
  echo "ended with $?"
}
sitting $left $((left - 25))
[ -s /tmp/rehearse/report.txt ] || sitting 60 0 # it was ended: report what there is
date
tail -60 /tmp/rehearse/progress.txt
cat /tmp/rehearse/report.txt
cp /tmp/rehearse/k/keepstep/receipt.pub /tmp/rehearse/
find $R /tmp/rehearse/long -size +3M -print -delete
tar czf $OUT/rehearsal.tgz -C /tmp/rehearse rehearsal long report.txt progress.txt receipt.pub new old $(cd /tmp/rehearse; ls drill-*.txt)
ls -la $OUT
date
